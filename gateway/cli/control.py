"""`turnout control`: the control loop alone."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import click

from backends.registry import create
from backends.transport import Upstream
from backends.types import Access, Replica
from backends.wire import WireUpstream
from gateway.cli.options import config_options, load_settings, refuse, watch_stdin_option
from gateway.cli.preflight import preflight
from gateway.cli.prepare import InUse, alone, make_folder
from gateway.control.access import accesses
from gateway.control.autoscale.loop import Scaler, limits_of
from gateway.control.beside import Pace
from gateway.control.builds import Send
from gateway.control.fleet.local import LocalFleet
from gateway.control.fleet.static import StaticFleet
from gateway.control.loop import ControlLoop
from gateway.control.supply import Artefacts
from gateway.control.watch import Watch, model_of
from gateway.db.engine import open_database
from gateway.db.errors import DatabaseError
from gateway.db.migrate import migrate
from gateway.settings import Settings, SettingsError
from telemetry.logs import json_logs

ASK_TIMEOUT: Final = 5.0  # seconds for a server's /v1/models


@click.command(short_help="Run the control loop alone.")
@config_options
@watch_stdin_option
def command(config: Path | None, data: str | None, *, watch_stdin: bool) -> None:
    """Run replicas, probe and scale them, and tell gateways of them, until SIGTERM or Ctrl-C.

    Then its replicas finish what they do and are stopped. A second signal does not wait for them.

    Example: turnout control --config turnout.toml
    """
    settings = load_settings(config, data)
    with json_logs(settings.telemetry.log_level, sys.stderr):
        try:
            preflight(settings, engines="here")
            make_folder(settings.folder)
            with alone(settings.folder / "control.lock", "A control loop"):
                asyncio.run(_control(settings, watch_stdin=watch_stdin))
        except (SettingsError, DatabaseError, InUse) as error:
            refuse(error)


async def _control(settings: Settings, *, watch_stdin: bool) -> None:
    pace = Pace()
    _leave_when_told(pace, watch_stdin=watch_stdin)
    await migrate(settings.database_url)
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(open_database(settings.database_url))
        upstream = WireUpstream()
        stack.push_async_callback(upstream.aclose)
        settle = 2 * settings.control.poll_interval + settings.control.interval
        local = LocalFleet(settings.folder / "logs", settle=settle, changed=pace.hurry)
        reached = accesses(settings)
        watch = _watch(settings, reached, upstream, pace)
        loop = ControlLoop(
            settings,
            db,
            local=local,
            static=StaticFleet({name: entry.urls for name, entry in settings.pools.items()}),
            watch=watch,
            scaler=Scaler({name: limits_of(entry) for name, entry in settings.pools.items() if entry.ours}),
            supply=Artefacts(
                settings, db, _send(settings), keys={name: one.key for name, one in reached.items() if one.key}
            ),
            pace=pace,
            clock=time.time,
        )
        await loop.begin()
        async with local, watch:
            await loop.run()
            await loop.end(settle)


def _send(settings: Settings) -> Send:
    """What puts a build into the queue."""

    def send(digest: str) -> None:
        from gateway.worker import sender  # noqa: PLC0415  Celery is slow to import, and most starts build nothing

        sender(settings)(digest)

    return send


def _watch(settings: Settings, reached: Mapping[str, Access], upstream: Upstream, pace: Pace) -> Watch:
    return Watch(
        settings.pools,
        reached,
        create(upstream),
        ask_model=partial(_ask_model, upstream),
        interval=settings.control.probe_interval,
        changed=pace.hurry,
        clock=time.time,
    )


async def _ask_model(upstream: Upstream, replica: Replica) -> str:
    url = f"{replica.url}/v1/models"
    document = await upstream.get(url, {}, access=replica.access, timeout=ASK_TIMEOUT)
    return model_of(document.body, url=url, status=document.status)


def _leave_when_told(pace: Pace, *, watch_stdin: bool) -> None:
    """The first signal, or the end of standard input, ends the loop in order; a second signal ends the process.

    Replicas then see the end of their own standard input.
    """
    loop = asyncio.get_running_loop()

    def told() -> None:
        if pace.stopped:
            os._exit(1)
        pace.stop()

    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            pace.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    if watch_stdin:
        loop.add_reader(0, read)
