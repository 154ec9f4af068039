"""`turnout up`: everything on this machine, supervised, until Ctrl-C."""

import asyncio
import shutil
import signal
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from gateway.cli import prepare
from gateway.cli.banner import banner, base_url
from gateway.cli.builtin import builtin
from gateway.cli.options import config_options, fail, load_settings
from gateway.cli.preflight import preflight
from gateway.cli.progress import PoolView, Ticker, line, outlook
from gateway.cli.supervise import Part, Supervisor
from gateway.control.fleet.child import first
from gateway.control.supply import digests_of
from gateway.db.engine import Database, open_database
from gateway.db.errors import DatabaseError
from gateway.db.migrate import migrate
from gateway.db.repositories import builds, replicas
from gateway.settings import Settings, SettingsError

LOOK: Final = 0.2  # seconds between looks at how far a start has come
LEAVE: Final = 10.0  # seconds that parts of a killed `turnout up` may take beyond their grace
PATIENCE: Final = 15.0  # seconds that pools in trouble get once all others are ready
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(short_help="Run everything on this machine.")
@config_options
@click.option("--host", metavar="ADDRESS", help="The address to serve on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to serve on; 0: a free one.  [default: 8000]")
@click.option("--simulated", is_flag=True, help="Simulated models: nothing is built, and it is up in seconds.")
def command(config: Path | None, data: str | None, host: str | None, port: int | None, *, simulated: bool) -> None:
    """Run gateway, control loop, build worker and engines on this machine, supervised; Ctrl-C stops them all.

    Without a configuration it serves two chat models and an embedding model on the CPU, and the routed model `auto`.

    Example: turnout up --data ~/turnout --port 9000
    """
    settings = effective(load_settings(config, data, builtin()), host=host, port=port)
    settings = prepare.simulated(settings) if simulated else settings
    try:
        preflight(settings, engines="here")
        digests = digests_of(settings.pools)
        prepare.make_folder(settings.folder)
        with prepare.alone(settings.folder / "lock", "Turnout") as killed:
            code = asyncio.run(_up(settings, digests, after_kill=killed))
    except (SettingsError, prepare.InUse, DatabaseError) as error:
        fail(str(error))
    sys.exit(code)


def effective(settings: Settings, *, host: str | None, port: int | None) -> Settings:
    """The settings with the command's own options over them, and the data folder as a whole path."""
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    face = msgspec.structs.replace(settings.gateway, **given)
    return msgspec.structs.replace(settings, data=str(settings.folder), gateway=face)


async def _up(settings: Settings, digests: Mapping[str, str], *, after_kill: bool) -> int:
    """Start, tell, wait for the end, stop. The exit code: 1 where a part kept dying."""
    ticker = Ticker(sys.stderr, lambda: shutil.get_terminal_size().columns)
    if after_kill:
        await _until_left(settings, ticker)
    port = prepare.claim_port(settings.gateway.host, settings.gateway.port)
    settings = msgspec.structs.replace(settings, gateway=msgspec.structs.replace(settings.gateway, port=port))
    settings = prepare.with_secrets(settings)
    file = settings.folder / "turnout.toml"
    prepare.write_settings(settings, file)
    ticker.show("preparing the database")
    await migrate(settings.database_url)
    supervisor = Supervisor(_parts(settings, file), ticker.tell)
    stop, hurry = asyncio.Event(), asyncio.Event()
    _on_signals(stop, hurry)
    async with open_database(settings.database_url) as db:
        supervisor.start()
        try:
            ends = first(stop.wait(), supervisor.failed.wait())
            await first(_tell_when_up(settings, digests, db, ticker), ends)
            await first(stop.wait(), supervisor.failed.wait())
        finally:
            ticker.show("stopping; once more Ctrl-C kills")
            await first(supervisor.stop(), hurry.wait())
            await supervisor.kill()
            ticker.clear()
    return 1 if supervisor.failed.is_set() else 0


async def _until_left(settings: Settings, ticker: Ticker) -> None:
    """The parts of a `turnout up` that was killed leave by themselves; running answers get their grace."""
    loop = asyncio.get_running_loop()
    end = loop.time() + settings.gateway.shutdown_grace + LEAVE
    while loop.time() < end:
        try:
            prepare.claim_port(settings.gateway.host, settings.gateway.port)
            if prepare.free(settings.folder / "control.lock"):
                return
        except prepare.InUse:
            pass
        ticker.show("the last Turnout on this folder was killed; waiting for its parts to leave")
        await asyncio.sleep(LOOK)


def _parts(settings: Settings, file: Path) -> Sequence[Part]:
    """The control loop, which stops the replicas, leaves after the gateway has answered its last request."""
    environ = prepare.environment(settings.folder)

    def part(name: str, grace: float, *after: str) -> Part:
        argv = (sys.executable, "-m", "gateway.cli", name, "--config", str(file), "--watch-stdin")
        return Part(name, argv, settings.folder / "logs" / f"{name}.log", grace, after, environ)

    return [
        part("gateway", settings.gateway.shutdown_grace + 5.0),
        part("control", 30.0, "gateway"),
        part("worker", 15.0),
    ]


def _on_signals(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    def told() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, told)


async def _tell_when_up(settings: Settings, digests: Mapping[str, str], db: Database, ticker: Ticker) -> None:
    """Show how far it has come; once all is ready, or stuck for long, print how to use it. Then wait for ever."""
    loop = asyncio.get_running_loop()
    stuck_since: float | None = None
    while True:
        views = await _look(settings, digests, db, ticker)
        if any(view.state == "working" for view in views):
            stuck_since = None
        elif all(view.state == "ready" for view in views):
            break
        elif stuck_since is None:
            stuck_since = loop.time()
        elif loop.time() - stuck_since > PATIENCE:
            break
        await asyncio.sleep(LOOK)
    await _until_served(base_url(settings), {view.pool for view in views if view.state == "ready"})
    ticker.clear()
    key, token = prepare.first_key(settings.keys), prepare.console_token(settings.console)
    click.echo(banner(settings, views, key=key, token=token))
    await asyncio.Event().wait()


async def _look(settings: Settings, digests: Mapping[str, str], db: Database, ticker: Ticker) -> Sequence[PoolView]:
    try:
        views = outlook(settings.pools, digests, await builds.list_all(db), await replicas.list_all(db))
    except DatabaseError as error:
        ticker.show(str(error))
        return [PoolView(name, "working", "not known") for name in settings.pools]
    ticker.show(line(views))
    return views


async def _until_served(url: str, pools: set[str]) -> None:
    """Wait until the gateway, too, knows these pools' replicas."""
    while not pools <= await asyncio.to_thread(_served, f"{url}/health/ready"):  # noqa: ASYNC110  another process's state
        await asyncio.sleep(LOOK)


def _served(url: str) -> set[str]:
    """The pools for which the gateway has a ready replica; none where it does not answer yet."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # to ourselves, whatever proxy is set
    try:
        with opener.open(url, timeout=2) as reply:
            health: dict[str, Any] = msgspec.json.decode(reply.read())
    except (OSError, msgspec.DecodeError):
        return set()
    return {name for name, pool in health.get("pools", {}).items() if pool.get("ready", 0) > 0}
