"""`turnout gateway`: the REST face alone."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click
import uvicorn
import uvloop
from typing_extensions import override

from gateway.api.protocol import ClientProtocol
from gateway.app import create_app, running
from gateway.cli.garbage import seldom_collected
from gateway.cli.options import config_options, leave_with_stdin, load_settings, refuse, watch_stdin_option
from gateway.cli.preflight import preflight
from gateway.db.errors import DatabaseError
from gateway.db.migrate import migrate
from gateway.settings import Settings, SettingsError
from telemetry.logs import json_logs

KEEP_ALIVE = 75  # seconds an idle client connection is kept: longer than the usual proxy keeps its own
BACKLOG = 2048


@click.command(short_help="Run the REST gateway alone.")
@config_options
@watch_stdin_option
def command(config: Path | None, data: str | None, *, watch_stdin: bool) -> None:
    """Answer requests until SIGTERM or Ctrl-C; running answers then get `gateway.shutdown_grace` seconds.

    Pools with a `url` are served from the start; those that a control loop runs appear as it reports them.

    Example: turnout gateway --config turnout.toml
    """
    settings = load_settings(config, data)
    if watch_stdin:
        leave_with_stdin()
    with json_logs(settings.telemetry.log_level, sys.stderr):
        try:
            preflight(settings, engines="elsewhere")
            listener = _listen(settings.gateway.host, settings.gateway.port)
            asyncio.run(migrate(settings.database_url))
            uvloop.run(_serve(settings, listener))
        except (SettingsError, DatabaseError) as error:
            refuse(error)


async def _serve(settings: Settings, listener: socket.socket) -> None:
    async with running(settings) as run:
        tell_start(settings, listener.getsockname()[:2])
        config = uvicorn.Config(
            create_app(run),
            http=ClientProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=round(settings.gateway.shutdown_grace),
            backlog=BACKLOG,
            ws="none",
        )
        # uvicorn raises the signal once more when it is done: what is open here must be closed first.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stay)
        with seldom_collected():
            await _Server(config, run.pictures.end).serve(sockets=[listener])


def tell_start(settings: Settings, address: tuple[str, int]) -> None:
    """One line in the log on what is served where, and one for what makes it useless."""
    log = logging.getLogger("turnout.gateway")
    host, port = address
    keys = "1 key" if len(settings.keys) == 1 else f"{len(settings.keys)} keys"
    pools = ", ".join(settings.pools) or "none"
    log.info("serving http://%s:%d; pools: %s; %s", f"[{host}]" if ":" in host else host, port, pools, keys)
    if not settings.keys:
        log.warning("no keys are configured, so nobody is let in: add [[keys]] to the settings")
    if not settings.pools:
        log.warning("no pools are configured, so nothing can be answered: add [pools.NAME] to the settings")


def _stay(_number: int, _frame: FrameType | None) -> None:
    """The server is leaving already."""


class _Server(uvicorn.Server):
    """Ends the console's endless streams when it begins to shut down; answers get their grace."""

    def __init__(self, config: uvicorn.Config, leaving: Callable[[], None]) -> None:
        super().__init__(config)
        self._leaving = leaving

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._leaving()
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"gateway.host, gateway.port: cannot listen on {host}:{port}: {error.strerror}. "
            "Stop what uses it, or choose another port."
        ) from error
    listener.set_inheritable(False)
    return listener
