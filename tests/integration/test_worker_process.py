"""Builds by a real worker process: on the filesystem broker, and on RabbitMQ where there is one."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import kombu
import pytest

from gateway.control.builds import QueueUnreachable, request_build, watch
from gateway.db.engine import Database, open_database
from gateway.db.migrate import migrate
from gateway.db.repositories import artefacts, builds
from gateway.db.rows import ArtefactRow, BuildRow
from gateway.settings import Settings, load
from gateway.worker import Folders, sender
from tests.support.worker_process import PretendRecipe

ROOT = Path(__file__).parents[2]
PATIENCE = 40.0
RABBIT = "amqp://guest:guest@127.0.0.1:5672//"


def _reachable(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(params=["filesystem", pytest.param("amqp", marks=pytest.mark.service)])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A configuration file; each test on RabbitMQ has a queue of its own."""
    queue = f"turnout-test-{uuid.uuid4().hex}"
    lines = [f'data = "{tmp_path}"']
    if request.param == "amqp":
        if not _reachable(5672):
            if os.environ.get("TURNOUT_REQUIRE_ALL"):
                pytest.fail("RabbitMQ is not there")
            pytest.skip("RabbitMQ is not there")
        lines += ["[broker]", f'url = "{RABBIT}"', f'queue = "{queue}"']
    path = tmp_path / "turnout.toml"
    path.write_text("\n".join(lines))
    yield path
    if request.param == "amqp":
        with kombu.Connection(RABBIT) as connection, connection.channel() as channel:
            channel.queue_delete(queue)
            channel.exchange_delete(queue)


@pytest.fixture
def settings(config: Path) -> Settings:
    return load(config, environ={})


@pytest.fixture
async def db(settings: Settings) -> AsyncIterator[Database]:
    await migrate(settings.database_url)
    async with open_database(settings.database_url) as database:
        yield database


@contextmanager
def worker(config: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process, killed at the end if it is still there."""
    argv = command or ("-m", "tests.support.worker_process", str(config))
    log = config.parent / "worker.log"
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, *argv], cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=out)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdin.close()


async def until(condition: Callable[[], object], what: str, process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, f"the worker ended before: {what}"
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}"
        await asyncio.sleep(0.05)


async def ended(db: Database, digest: str) -> list[BuildRow]:
    async with asyncio.timeout(PATIENCE):
        return [row async for row in watch(db, digest, interval=0.05)]


async def begun(db: Database, digest: str) -> BuildRow:
    """The build once it is under way."""
    async with asyncio.timeout(PATIENCE):
        async for row in watch(db, digest, interval=0.05):
            if row.state == "running" and row.progress > 0:
                return row
    raise AssertionError("it ended before it was seen running")


def content(made: ArtefactRow) -> str:
    return Path(made.file).read_text()


def attempts(row: BuildRow) -> int:
    return len(Path(row.log).read_text().splitlines())


async def ask(db: Database, settings: Settings, recipe: PretendRecipe) -> BuildRow:
    return await request_build(db, recipe, sender(settings), pool="small", now=time.time())


async def test_a_build_is_done_once_and_tells_its_progress(config: Path, settings: Settings, db: Database) -> None:
    recipe = PretendRecipe(source="a", seconds=1.0)
    assert (await ask(db, settings, recipe)).state == "queued"
    assert (await ask(db, settings, recipe)).state == "queued"
    with worker(config):
        rows = await ended(db, recipe.digest)
        assert rows[-1].state == "done"
        assert rows[-1].progress == 1.0
        shares = [row.progress for row in rows]
        assert shares == sorted(shares)
        assert any(0 < share < 1 for share in shares)
        made = await artefacts.get(db, recipe.digest)
        assert made is not None
        assert content(made) == "a"
        # Asked again, it stays done; another recipe goes through the same worker.
        assert (await ask(db, settings, recipe)).state == "done"
        other = PretendRecipe(source="b", failure="no such weights")
        await ask(db, settings, other)
        last = (await ended(db, other.digest))[-1]
        assert (last.state, last.message) == ("failed", "no such weights")
    assert attempts(rows[-1]) == 1


async def test_a_killed_workers_build_is_picked_up_by_the_next(config: Path, settings: Settings, db: Database) -> None:
    recipe = PretendRecipe(source="a", seconds=3.0)
    await ask(db, settings, recipe)
    with worker(config) as process:
        row = await begun(db, recipe.digest)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with worker(config):
        last = (await ended(db, recipe.digest))[-1]
    assert (last.state, last.attempts, attempts(row)) == ("done", 2, 2)


async def test_sigterm_puts_a_running_build_back(config: Path, settings: Settings, db: Database) -> None:
    recipe = PretendRecipe(source="a", seconds=30.0)
    await ask(db, settings, recipe)
    with worker(config) as process:
        await begun(db, recipe.digest)
        process.send_signal(signal.SIGTERM)
        await until(lambda: process.poll() is not None, "the worker leaves")
        assert process.returncode == 0
    row = await builds.get(db, recipe.digest)
    assert row is not None
    assert (row.state, row.attempts, row.owner) == ("queued", 0, "")
    assert await builds.cancel(db, recipe.digest, now=time.time())


async def test_a_running_build_can_be_cancelled(config: Path, settings: Settings, db: Database) -> None:
    recipe = PretendRecipe(source="a", seconds=30.0)
    await ask(db, settings, recipe)
    with worker(config) as process:
        await begun(db, recipe.digest)
        assert await builds.cancel(db, recipe.digest, now=time.time())
        assert (await ended(db, recipe.digest))[-1].state == "cancelled"
        process.send_signal(signal.SIGINT)
        await until(lambda: process.poll() is not None, "the worker leaves")
        assert process.returncode == 0


@pytest.mark.parametrize("config", ["filesystem"], indirect=True)
async def test_the_command_leaves_with_its_standard_input(config: Path, settings: Settings) -> None:
    with worker(config, "-m", "gateway.cli", "worker", "--config", str(config), "--watch-stdin") as process:
        await until(lambda: b"ready" in (config.parent / "worker.log").read_bytes(), "the worker is ready", process)
        process.stdin.close()
        await until(lambda: process.poll() is not None, "the worker leaves")
        assert process.returncode == 0
    folders = Folders(settings.folder / "queue")
    assert folders.messages.is_dir()
    assert list(ROOT.glob("control")) == []  # the broker's folders are all in the data folder


async def test_an_unreachable_broker_leaves_no_build_behind(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"amqp://guest:guest@127.0.0.1:{nobody.getsockname()[1]}//"
        settings = load(None, environ={"TURNOUT__DATA": str(tmp_path), "TURNOUT__BROKER__URL": url})
        await migrate(settings.database_url)
        async with open_database(settings.database_url) as database:
            recipe = PretendRecipe(source="a")
            with pytest.raises(QueueUnreachable, match="cannot be reached"):
                await ask(database, settings, recipe)
            assert await builds.get(database, recipe.digest) is None
