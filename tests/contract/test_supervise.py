"""Supervision of the parts of `turnout up`, with small programs in their place."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from gateway.cli.supervise import Part, Supervisor
from tests.support.processes import gone, until

SERVER = str(Path(__file__).parent.parent / "support" / "fake_server.py")


def part(folder: Path, name: str, *options: str, grace: float = 5.0, after: tuple[str, ...] = ()) -> Part:
    return Part(name, (sys.executable, SERVER, *options), folder / f"{name}.log", grace, after)


class Told(list):
    def __call__(self, text: str) -> None:
        self.append(text)

    def naming(self, *words: str):
        async def look():
            return next((text for text in self if all(word in text for word in words)), None)

        return look


async def listening(log: Path, times: int = 1) -> int:
    """The number of starts that a log tells of, once there are `times`."""

    async def look():
        return starts(log) if starts(log) >= times else None

    return await until(look)


def starts(log: Path) -> int:
    return log.read_text().count("listening on ") if log.exists() else 0


def pids(supervisor: Supervisor) -> list[int]:
    return [place.process.pid for place in supervisor._places]


async def test_a_part_leaves_after_those_that_need_it(tmp_path):
    told = Told()
    supervisor = Supervisor([part(tmp_path, "one", "--drain", "0.3"), part(tmp_path, "two", after=("one",))], told)
    supervisor.start()
    await listening(tmp_path / "one.log")
    await listening(tmp_path / "two.log")
    first, second = pids(supervisor)
    stopping = asyncio.create_task(supervisor.stop())
    await asyncio.sleep(0.15)
    assert not gone(second)  # the first still drains
    await asyncio.wait_for(stopping, 10)
    assert gone(first)
    assert gone(second)
    assert told == []
    assert not supervisor.failed.is_set()


async def test_one_that_dies_is_named_and_started_again(tmp_path):
    told = Told()
    supervisor = Supervisor([part(tmp_path, "one"), part(tmp_path, "two")], told)
    supervisor.start()
    await listening(tmp_path / "one.log")
    await listening(tmp_path / "two.log")
    before, other = pids(supervisor)
    os.kill(before, signal.SIGKILL)
    text = await until(told.naming("one", "killed by SIGKILL", "starting it again in 0.5 s", "one.log"))
    assert "listening on" in text  # its last words
    assert await listening(tmp_path / "one.log", 2) == 2
    assert pids(supervisor)[1] == other
    await supervisor.stop()


async def test_one_that_keeps_dying_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.cli.supervise.pause_after", lambda failures: 0.01)
    told = Told()
    supervisor = Supervisor([part(tmp_path, "bad", "--die-at-once"), part(tmp_path, "good")], told)
    supervisor.start()
    await asyncio.wait_for(supervisor.failed.wait(), 20)
    assert len(told) == 4
    assert "exited with code 1, 4 times in a row; giving up" in told[-1]
    assert "the model file is broken" in told[-1]
    await asyncio.wait_for(supervisor.stop(), 10)
    assert gone(pids(supervisor)[1])


async def test_one_that_refuses_its_settings_is_final_at_once(tmp_path):
    told = Told()
    words = 'import sys; print(\'{"level": "info", "message": "x"}\'); sys.stderr.write(\'turnout: pools.p: no key\\n\'); sys.exit(2)'
    parts = [Part("bad", (sys.executable, "-c", words), tmp_path / "bad.log", 1.0), part(tmp_path, "good")]
    supervisor = Supervisor(parts, told)
    supervisor.start()
    await asyncio.wait_for(supervisor.failed.wait(), 20)
    assert told == ["bad cannot start: pools.p: no key"]
    await asyncio.wait_for(supervisor.stop(), 10)


async def test_a_part_that_cannot_be_started_is_given_up_too(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.cli.supervise.pause_after", lambda failures: 0.01)
    told = Told()
    supervisor = Supervisor([Part("none", ("/no/such/program",), tmp_path / "none.log", 1.0)], told)
    supervisor.start()
    await asyncio.wait_for(supervisor.failed.wait(), 20)
    assert "cannot be started" in told[-1]
    await supervisor.stop()


async def test_killing_waits_for_nobody(tmp_path):
    supervisor = Supervisor([part(tmp_path, "one", "--deaf", grace=60), part(tmp_path, "two", "--deaf")], Told())
    supervisor.start()
    await listening(tmp_path / "one.log")
    await listening(tmp_path / "two.log")
    stopping = asyncio.create_task(supervisor.stop())
    await asyncio.sleep(0.1)
    await asyncio.wait_for(supervisor.kill(), 10)
    await asyncio.wait_for(stopping, 10)
    assert all(gone(pid) for pid in pids(supervisor))


@pytest.mark.parametrize("waiting", [True, False])
async def test_what_ends_while_stopping_is_left_alone(tmp_path, waiting):
    told = Told()
    supervisor = Supervisor([part(tmp_path, "one", "--drain", "0.5"), part(tmp_path, "two", after=("one",))], told)
    supervisor.start()
    await listening(tmp_path / "one.log")
    await listening(tmp_path / "two.log")
    stopping = asyncio.create_task(supervisor.stop())
    await asyncio.sleep(0.1)
    if waiting:
        os.kill(pids(supervisor)[1], signal.SIGKILL)
    await asyncio.wait_for(stopping, 10)
    assert told == []


async def test_nothing_that_a_child_prints_at_once_is_missed(tmp_path):
    """It shares its log's position with us: what it had printed before we looked was taken for older."""
    from gateway.control.fleet.child import child

    for number in range(20):
        log = tmp_path / f"{number}.log"
        async with child(("/bin/echo", "here"), log) as process:
            await asyncio.wait_for(process.exited(), 10)
            assert process.last_lines() == ("here",)
