"""The local fleet against small programs that behave like replicas, well and badly. Every wait is bounded."""

import asyncio
import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from gateway.control.fleet.child import Child, NotReady, pause_after
from gateway.control.fleet.local import LocalFleet
from gateway.control.fleet.protocol import Launch, Unit
from gateway.control.fleet.room import MIB, RESERVE, Machine, _available, _cgroup_room, refusal, this_machine
from gateway.control.fleet.static import StaticFleet
from gateway.control.supply import simulated_launch
from gateway.settings import PoolSettings
from tests.support.processes import gone, until

SERVER = str(Path(__file__).parent.parent / "support" / "fake_server.py")
PLENTY = Machine(threads=100, free_memory=None)


def launch(*options: str, **more) -> Launch:
    return Launch((sys.executable, SERVER, *options), **more)


@pytest.fixture
async def fleet(tmp_path):
    async with LocalFleet(tmp_path / "logs", settle=0.05, machine=lambda: PLENTY) as fleet:
        yield fleet


async def units(fleet, pool="p") -> list[Unit]:
    return [unit for unit in await fleet.observe() if unit.pool == pool]


async def all_running(fleet, count: int) -> list[Unit]:
    async def look():
        seen = await units(fleet)
        return seen if [unit.phase for unit in seen] == ["running"] * count else None

    return await until(look)


async def test_starts_what_is_asked_and_stops_what_is_over(fleet):
    await fleet.scale("p", 2, launch())
    first, second = await all_running(fleet, 2)
    assert (first.id, second.id) == ("p-1", "p-2")
    assert first.url != second.url
    assert (await asyncio.to_thread(urllib.request.urlopen, first.url, timeout=5)).status == 200
    await fleet.scale("p", 2, launch())  # asking again changes nothing
    assert [unit.pid for unit in await units(fleet)] == [first.pid, second.pid]
    await fleet.scale("p", 1, launch())
    (left,) = await all_running(fleet, 1)
    assert left == first  # the youngest went
    assert gone(second.pid)
    await fleet.scale("p", 0, None)
    await until(lambda: fleet_is_empty(fleet))
    assert gone(first.pid)


async def fleet_is_empty(fleet) -> bool:
    return not await units(fleet)


async def test_a_program_gets_its_own_environment_beside_ours(fleet, tmp_path, monkeypatch):
    monkeypatch.setenv("OURS", "o")
    words = "import os; open(os.environ['FILE'], 'w').write(os.environ['OURS']); print('listening on http://x', flush=True); input()"
    await fleet.scale("p", 1, Launch((sys.executable, "-c", words), environ={"FILE": str(tmp_path / "told")}))
    await all_running(fleet, 1)
    assert (tmp_path / "told").read_text() == "o"


async def test_a_dead_replica_comes_back_with_another_incarnation(fleet, tmp_path):
    await fleet.scale("p", 1, launch())
    (before,) = await all_running(fleet, 1)
    os.kill(before.pid, signal.SIGKILL)

    async def back():
        (unit,) = await units(fleet)
        return unit if unit.phase == "running" and unit.incarnation != before.incarnation else None

    after = await until(back)
    assert after.id == before.id
    assert after.pid != before.pid


async def test_why_it_died_is_said_with_the_last_line_it_printed(fleet):
    await fleet.scale("p", 1, launch("--die-at-once"))

    async def failed():
        (unit,) = await units(fleet)
        return unit.reason if unit.phase == "backoff" else None

    reason = await until(failed)
    assert "exited with code 1" in reason
    assert "the model file is broken" in reason
    assert "next start in" in reason


async def test_a_program_that_does_not_exist_is_a_reason_not_a_crash(fleet):
    await fleet.scale("p", 1, Launch(("/no/such/program",)))

    async def failed():
        (unit,) = await units(fleet)
        return unit.reason if unit.phase == "backoff" else None

    assert "cannot be started" in await until(failed)


async def test_one_that_is_never_ready_does_not_block_the_others(fleet):
    await fleet.scale("q", 1, launch("--never-ready", start_timeout=0.6))
    await fleet.scale("p", 1, launch())
    await all_running(fleet, 1)

    async def given_up():
        (unit,) = await units(fleet, "q")
        return unit if unit.phase == "backoff" else None

    assert "not ready after 1 s" in (await until(given_up)).reason
    await fleet.scale("q", 0, None)
    await until(lambda: _none(fleet, "q"))


async def _none(fleet, pool) -> bool:
    return not await units(fleet, pool)


async def test_draining_is_seen_before_it_is_done(fleet):
    await fleet.scale("p", 1, launch("--drain", "0.4"))
    (unit,) = await all_running(fleet, 1)
    await fleet.drain(unit.id)

    async def draining():
        seen = await units(fleet)
        return seen[0] if seen and seen[0].phase == "draining" else None

    assert (await until(draining)).url == unit.url  # gateways can still be told which one goes
    assert not gone(unit.pid)
    await until(lambda: fleet_is_empty(fleet))
    assert gone(unit.pid)


async def test_an_answer_that_runs_is_finished_before_its_replica_goes(fleet):
    """wire.md H: live streams were cut five seconds after SIGTERM."""
    entry = PoolSettings(simulated={"decode_rate": 100, "start_delay": 0})
    await fleet.scale("p", 1, simulated_launch("p", entry))
    (unit,) = await all_running(fleet, 1)
    asking = asyncio.create_task(asyncio.to_thread(_stream, unit.url, 100))
    await asyncio.sleep(0.3)
    await fleet.scale("p", 0, None)
    answer = await asyncio.wait_for(asking, 20)
    assert answer.rstrip().endswith("data: [DONE]")
    assert '"finish_reason":"length"' in answer.replace(" ", "")
    await until(lambda: fleet_is_empty(fleet))


def _stream(url: str, tokens: int) -> str:
    body = {"model": "p", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": "go"}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        return reply.read().decode()


async def test_one_that_ignores_sigterm_is_killed_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.control.fleet.local.STOP_MARGIN", 0.2)
    note = tmp_path / "pid"
    async with LocalFleet(tmp_path / "logs", machine=lambda: PLENTY) as fleet:
        await fleet.scale("p", 1, launch("--deaf", "--child", str(note), drain=0.1))
        (unit,) = await all_running(fleet, 1)
        started = time.monotonic()
    assert time.monotonic() - started < 5
    assert gone(unit.pid)
    await until(lambda: _gone(int(note.read_text())))


async def _gone(pid: int) -> bool:
    return gone(pid)


async def test_leaving_the_fleet_stops_everything_even_what_never_became_ready(tmp_path):
    async with LocalFleet(tmp_path / "logs", machine=lambda: PLENTY) as fleet:
        await fleet.scale("p", 1, launch())
        await fleet.scale("q", 1, launch("--never-ready"))
        await all_running(fleet, 1)
        pids = [unit.pid for unit in await fleet.observe()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
    assert await fleet.observe() == ()


async def test_a_killed_owner_leaves_no_replica_behind(tmp_path):
    """kill -9 gives nobody a chance to clean up: the replica must notice the end of its stdin."""
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from gateway.control.fleet.local import LocalFleet\n"
        "from gateway.control.fleet.protocol import Launch\n"
        "async def main():\n"
        "    async with LocalFleet(Path(sys.argv[1])) as fleet:\n"
        "        await fleet.scale('p', 1, Launch((sys.executable, sys.argv[2])))\n"
        "        while not (pid := [u.pid for u in await fleet.observe() if u.phase == 'running']):\n"
        "            await asyncio.sleep(0.05)\n"
        "        print(pid[0], flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), SERVER, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    pid = int(await asyncio.wait_for(owner.stdout.readline(), 20))
    assert not gone(pid)
    owner.kill()
    await owner.wait()
    await until(lambda: _gone(pid))


async def test_a_replica_without_room_waits_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.control.fleet.local.LOOK_AGAIN", 0.1)
    free = [100 * MIB + RESERVE]
    machine = lambda: Machine(threads=100, free_memory=free[0])  # noqa: E731
    async with LocalFleet(tmp_path, machine=machine) as fleet:
        await fleet.scale("p", 1, launch(memory=300 * MIB))

        async def waiting():
            (unit,) = await units(fleet)
            return unit.reason if unit.phase == "waiting" and unit.reason else None

        assert await until(waiting) == "needs about 300 MiB of memory, and 100 MiB are free"
        free[0] = 900 * MIB
        await all_running(fleet, 1)


@pytest.mark.parametrize(
    ("running", "starting", "machine", "words"),
    [
        ([], [], Machine(2, None), None),
        ([Launch((), threads=1)], [], Machine(2, None), None),
        ([Launch((), threads=1)], [Launch((), threads=1)], Machine(2, None), "2 of 2 are taken"),
        ([], [], Machine(2, 300 * MIB + RESERVE), None),
        ([Launch((), memory=900 * MIB)], [], Machine(2, 300 * MIB + RESERVE), None),  # is already missing from the free
        ([], [Launch((), memory=100 * MIB)], Machine(2, 300 * MIB + RESERVE), "200 MiB are free"),
        ([], [Launch((), memory=999 * MIB)], Machine(2, 300 * MIB), "0 MiB are free"),
    ],
)
def test_room(running, starting, machine, words):
    why = refusal(Launch((), memory=300 * MIB), running, starting, machine)
    assert why is None if words is None else words in str(why)


def test_this_machine_has_room_for_two_chat_pools_and_one_for_embeddings():
    machine = this_machine()
    assert machine.threads >= 4
    assert machine.free_memory is None or machine.free_memory > 0


def test_free_memory_is_what_the_system_says_and_a_container_allows(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    2048 kB\n")
    assert _available(meminfo) == 2 * MIB
    assert _available(tmp_path / "none") is None
    assert _cgroup_room(tmp_path) is None
    for name, text in {"memory.max": "1000", "memory.current": "900", "memory.stat": "anon 500\nfile 300\n"}.items():
        (tmp_path / name).write_text(text)
    assert _cgroup_room(tmp_path) == 400
    (tmp_path / "memory.max").write_text("max\n")
    assert _cgroup_room(tmp_path) is None


def test_pauses_double_and_end_at_half_a_minute():
    assert [pause_after(n) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert pause_after(10_000) == 30


async def test_a_child_that_ends_is_noticed_before_the_deadline(tmp_path):
    child = await Child.start((sys.executable, SERVER, "--die-at-once"), tmp_path / "log")
    with pytest.raises(NotReady, match="exited with code 1"):
        await child.printed("listening on ", within=20)
    assert child.last_lines() == ("the model file is broken",)


async def test_an_earlier_process_in_the_same_log_is_not_taken_for_this_one(tmp_path):
    (tmp_path / "log").write_text("listening on http://127.0.0.1:1\n")
    child = await Child.start((sys.executable, SERVER), tmp_path / "log")
    try:
        assert await child.printed("listening on ", within=20) != "http://127.0.0.1:1"
    finally:
        await child.stop(5)


async def test_urls_are_units_that_are_always_there():
    fleet = StaticFleet({"a": ["http://one/", "http://two"], "b": ["https://three"]})
    assert [(u.id, u.pool, u.url, u.phase) for u in await fleet.observe()] == [
        ("a-1", "a", "http://one", "running"),
        ("a-2", "a", "http://two", "running"),
        ("b-1", "b", "https://three", "running"),
    ]
    await fleet.scale("a", 0, None)
    assert len(await fleet.observe()) == 3
    await fleet.drain("a-1")
    assert [unit.id for unit in await fleet.observe()] == ["a-2", "b-1"]
