"""One suite for every database: migrations, repositories, writers at the same time."""

import asyncio
import multiprocessing
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from backends.types import Load
from gateway.db.engine import open_database
from gateway.db.errors import Unavailable
from gateway.db.migrate import differences, downgrade, migrate
from gateway.db.repositories import artefacts, builds, decisions, demand, replicas, requests
from gateway.db.rows import ArtefactRow, Demand, DemandRow, ReplicaRow, ScaleDecision
from telemetry.record import RequestRecord
from tests.support.databases import fresh_database, fresh_url

ROOT = Path(__file__).parents[2]
KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.service)]
ROW = ReplicaRow(id="small-1", pool="small", url="http://127.0.0.1:1", state="joining", changed_at=1.0)
RECORD = RequestRecord(id="r", at=1.0, operation="chat", caller="ann", model="auto")


@pytest.fixture(params=KINDS)
async def url(request, tmp_path):
    async with fresh_url(request.param, tmp_path) as fresh:
        yield fresh


@pytest.fixture(params=KINDS)
async def db(request, tmp_path):
    async with fresh_database(request.param, tmp_path) as database:
        yield database


# Migrations


async def test_up_down_up(url):
    await migrate(url)
    assert await differences(url) == []
    async with open_database(url) as db:
        await replicas.put(db, ROW)
    await downgrade(url, "base")
    assert len(await differences(url)) > 0
    await migrate(url)
    await migrate(url)  # twice is once
    assert await differences(url) == []
    async with open_database(url) as db:
        assert await replicas.picture(db) == replicas.Picture(1, ())


async def test_many_processes_migrate_at_once(url):
    program = f"import asyncio; from gateway.db.migrate import migrate; asyncio.run(migrate({url!r}))"
    argv = [sys.executable, "-W", "error", "-c", program]
    started = [await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(3)]
    errors = [(await process.communicate())[1].decode() for process in started]
    assert [(process.returncode, error) for process, error in zip(started, errors, strict=True)] == [(0, "")] * 3
    async with open_database(url) as db:
        assert await replicas.version(db) == 1


async def test_without_tables_the_error_says_so(url):
    async with open_database(url) as db:
        with pytest.raises(Unavailable, match=r"marks|does not exist"):
            await replicas.version(db)


# Replicas


async def test_a_replica_comes_changes_and_goes(db):
    ready = msgspec.structs.replace(ROW, state="ready", served_model="smol", slots=4, pid=7, kv_used=0.5)
    await replicas.put(db, ROW)
    await replicas.put(db, ready)
    other = msgspec.structs.replace(ready, id="large-1", pool="large")
    await replicas.put(db, other)
    assert await replicas.list_all(db) == (other, ready)
    assert await replicas.list_all(db, "small") == (ready,)
    await replicas.remove(db, ["small-1", "unknown"])
    assert await replicas.list_all(db) == (other,)


@pytest.mark.parametrize(
    ("change", "matters"),
    [
        ({}, False),
        ({"running": 3, "waiting": 1, "kv_used": 0.2}, False),
        ({"reason": "slow", "pid": 9, "changed_at": 5.0}, False),
        ({"state": "ready"}, True),
        ({"url": "http://127.0.0.1:2"}, True),
        ({"slots": 2}, True),
        ({"served_model": "other"}, True),
        ({"incarnation": "second"}, True),
        ({"pool": "large"}, True),
    ],
)
async def test_the_version_grows_with_what_routing_needs_to_know(db, change, matters):
    await replicas.put(db, ROW)
    before = await replicas.version(db)
    changed = msgspec.structs.replace(ROW, **change)
    await replicas.put(db, changed)
    assert await replicas.list_all(db) == (changed,)
    assert await replicas.version(db) == before + (1 if matters else 0)


async def test_states_and_loads(db):
    assert not await replicas.set_state(db, "small-1", "ready", reason="", now=1.0)
    await replicas.put(db, ROW)
    before = await replicas.version(db)
    assert await replicas.set_state(db, "small-1", "ready", reason="answers", now=2.0)
    assert await replicas.set_state(db, "small-1", "ready", reason="still", now=3.0)
    assert await replicas.version(db) == before + 1
    await replicas.update_load(db, {"small-1": Load(2, 1, 0.25), "unknown": Load(9, 9)})
    await replicas.update_load(db, {})
    (row,) = await replicas.list_all(db)
    assert (row.state, row.reason, row.changed_at) == ("ready", "still", 2.0)
    assert (row.running, row.waiting, row.kv_used) == (2, 1, 0.25)
    assert await replicas.version(db) == before + 1
    await replicas.remove(db, [])
    await replicas.remove(db, ["unknown"])
    assert await replicas.version(db) == before + 1
    await replicas.remove(db, ["small-1"])
    assert await replicas.version(db) == before + 2


async def test_signs_of_life(db):
    assert await replicas.signs(db) == replicas.Signs(1, None)
    await replicas.beat(db, 1700000000.9)
    await replicas.beat(db, 1700000001.9)
    assert await replicas.signs(db) == replicas.Signs(1, 1700000001.0)


# Demand


async def test_demand_adds_gateways_up_and_tells_silence_from_zero(db):
    await demand.put(db, "a", [DemandRow(pool="small", running=2, waiting=1, arrived=5, last_request_at=9.0)], 10.0)
    await demand.put(db, "b", [DemandRow(pool="small"), DemandRow(pool="large", arrived=1)], 11.0)
    await demand.put(db, "a", [DemandRow(pool="small", running=3, arrived=6, last_request_at=10.0)], 12.0)
    await demand.put(db, "a", [], 13.0)
    assert await demand.totals(db, 13.0, 3.0) == {
        "small": Demand(running=3, waiting=0, arrived=6, last_request_at=10.0, seen=True),
        "large": Demand(arrived=1, seen=True),
    }
    # b has been silent for too long; a's word alone counts. Nobody speaks of large any more: unknown, not zero.
    later = await demand.totals(db, 15.0, 3.0)
    assert later["small"] == Demand(running=3, arrived=6, last_request_at=10.0, seen=True)
    assert later["large"] == Demand(arrived=1, seen=False)
    assert (await demand.totals(db, 99.0, 3.0))["small"] == Demand(arrived=6, last_request_at=10.0, seen=False)
    await demand.prune(db, 12.0)
    assert set(await demand.totals(db, 15.0, 3.0)) == {"small"}


# Decisions, requests


async def test_decisions_newest_first(db):
    for number in range(4):
        pool = "small" if number % 2 else "large"
        await decisions.add(db, ScaleDecision(at=float(number), pool=pool, before=number, after=number + 1, reason="x"))
    assert [row.before for row in await decisions.recent(db, 3)] == [3, 2, 1]
    assert [row.before for row in await decisions.recent(db, pool="large")] == [2, 0]
    assert len({row.id for row in await decisions.recent(db)}) == 4
    await decisions.prune(db, 3.0)
    assert [row.before for row in await decisions.recent(db)] == [3]


async def test_requests_come_back_as_they_went_in(db):
    full = RequestRecord(
        id="r",
        at=1764630303.123456,
        operation="chat",
        caller="ann",
        model='au"to — ü',
        pool="small",
        replica="small-1",
        route="gain=0.23",
        status=200,
        outcome="interrupted",
        error="stream_incomplete",
        stream=True,
        form="lossless",
        prompt_bytes=3_000_000_000,
        sent_bytes=2_999_999_999,
        prompt_tokens=100,
        cached_tokens=90,
        completion_tokens=7,
        prefix_hit=0.9,
        queued=0.1,
        decided=0.0002,
        ttft=0.2,
        tpot=0.01,
        duration=0.5,
        because={"wait": 0.1, "decode": 1.5},
        traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        attempts=2,
    )
    assert {name for name in full.__struct_fields__ if getattr(full, name) == getattr(RECORD, name)} <= {
        "id",
        "operation",
        "caller",
        "status",
    }
    await requests.add_many(db, [full, RECORD, full])  # the same id twice: a client may send one
    await requests.add_many(db, [])
    assert await requests.recent(db) == (full, full, RECORD)
    assert await requests.recent(db, 1) == (full,)
    assert await requests.recent(db, pool="") == (RECORD,)
    assert await requests.prune(db, 100.0) == 1
    assert await requests.recent(db) == (full, full)


# Builds, artefacts


async def test_a_build_from_queue_to_end(db):
    assert await builds.get(db, "d") is None
    assert await builds.enqueue(db, "d", {"engine": "x"}, pool="small", now=1.0)
    assert not await builds.enqueue(db, "d", {"engine": "y"}, pool="large", now=2.0)
    row = await builds.start(db, "d", owner="me", log="/l", now=3.0)
    assert row is not None
    assert (row.state, row.pool, row.recipe, row.attempts, row.started_at) == (
        "running",
        "small",
        {"engine": "x"},
        1,
        3.0,
    )
    assert await builds.start(db, "d", owner="other", log="", now=4.0) is None
    assert not await builds.report(db, "d", owner="other", progress=0.9, message="not mine", now=4.0)
    assert await builds.report(db, "d", owner="me", progress=0.5, message="half", now=5.0)
    await builds.finish(db, "d", owner="other", message="", now=6.0)
    await builds.fail(db, "d", owner="other", message="", now=6.0)
    row = await builds.get(db, "d")
    assert (row.state, row.progress, row.message, row.heartbeat_at) == ("running", 0.5, "half", 5.0)
    await builds.finish(db, "d", owner="me", message="done", now=7.0)
    row = await builds.get(db, "d")
    assert (row.state, row.progress, row.ended_at, row.open) == ("done", 1.0, 7.0, False)
    assert not await builds.enqueue(db, "d", {}, pool=None, now=8.0)
    assert await builds.enqueue(db, "d", {"engine": "x"}, pool=None, now=9.0, again=True)
    row = await builds.get(db, "d")
    assert (row.state, row.attempts, row.progress, row.ended_at) == ("queued", 0, 0.0, None)


async def test_cancelling(db):
    assert not await builds.cancel(db, "d", now=1.0)
    await builds.enqueue(db, "d", {}, pool=None, now=1.0)
    assert await builds.cancel(db, "d", now=2.0)
    assert (await builds.get(db, "d")).state == "cancelled"
    assert await builds.start(db, "d", owner="me", log="", now=3.0) is None
    await builds.enqueue(db, "d", {}, pool=None, now=4.0, again=True)
    await builds.start(db, "d", owner="me", log="", now=5.0)
    assert await builds.report(db, "d", owner="me", progress=0.1, message="", now=6.0)
    assert await builds.cancel(db, "d", now=6.0)
    assert not await builds.report(db, "d", owner="me", progress=0.2, message="", now=7.0)
    await builds.fail(db, "d", owner="me", message="stopped", now=8.0)
    assert (await builds.get(db, "d")).state == "cancelled"
    assert not await builds.cancel(db, "d", now=9.0)


async def test_releasing_and_withdrawing(db):
    await builds.enqueue(db, "d", {}, pool=None, now=1.0)
    await builds.start(db, "d", owner="me", log="", now=2.0)
    assert not await builds.release(db, "d", owner="other", now=3.0)
    assert await builds.release(db, "d", owner="me", now=3.0, died=True)
    row = await builds.get(db, "d")
    assert (row.state, row.owner, row.attempts, row.heartbeat_at) == ("queued", "", 1, None)
    await builds.start(db, "d", owner="me", log="", now=4.0)
    await builds.withdraw(db, "d")  # not while it runs
    assert await builds.release(db, "d", owner="me", now=5.0)
    assert (await builds.get(db, "d")).attempts == 1
    await builds.enqueue(db, "e", {}, pool=None, now=6.0)
    assert [row.digest for row in await builds.list_all(db, ["queued"])] == ["e", "d"]
    await builds.withdraw(db, "d")
    assert [row.digest for row in await builds.list_all(db)] == ["e"]
    assert await builds.list_all(db, ["done"]) == ()


async def test_artefacts(db):
    row = ArtefactRow(
        digest="d", engine="x", file="/f", bytes=5_000_000_000, sha256="0", manifest={"a": [1]}, created_at=1.0
    )
    newer = msgspec.structs.replace(row, digest="e", created_at=2.0)
    await artefacts.put(db, row)
    await artefacts.put(db, newer)
    again = msgspec.structs.replace(row, manifest={"a": [2]})
    await artefacts.put(db, again)
    assert await artefacts.get(db, "d") == again
    assert await artefacts.list_all(db) == (newer, again)
    await artefacts.remove(db, "d")
    assert await artefacts.get(db, "d") is None


# Many at once


async def test_one_of_many_enqueues_and_one_of_many_starts(db):
    enqueued = await asyncio.gather(*(builds.enqueue(db, "d", {}, pool=None, now=1.0) for _ in range(8)))
    assert sum(enqueued) == 1
    started = await asyncio.gather(*(builds.start(db, "d", owner=str(one), log="", now=2.0) for one in range(8)))
    assert sum(row is not None for row in started) == 1


def write_a_lot(url: str, name: str, rounds: int) -> None:
    async def write():
        async with open_database(url) as db:
            for number in range(rounds):
                row = msgspec.structs.replace(ROW, id=name, state="ready" if number % 2 else "joining")
                await replicas.put(db, row)
                await demand.put(db, name, [DemandRow(pool="small", arrived=number + 1)], float(number))
                await requests.add_many(db, [RECORD] * 5)

    asyncio.run(write())


async def test_three_processes_write_and_nothing_is_lost(url):
    await migrate(url)
    rounds = 30
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=write_a_lot, args=(url, f"w{one}", rounds)) for one in range(3)]
    for writer in writers:
        writer.start()
    await asyncio.gather(*(asyncio.to_thread(writer.join) for writer in writers))
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    async with open_database(url) as db:
        assert await replicas.version(db) == 1 + 3 * rounds
        assert (await demand.totals(db, 0.0, 1e9))["small"].arrived == 3 * rounds
        assert await requests.prune(db, 100.0) == 3 * rounds * 5


async def test_a_transaction_that_fails_leaves_nothing(db):
    async def half(connection):
        await connection.execute(text("UPDATE marks SET value = 99"))
        await connection.execute(text("UPDATE nothing SET value = 99"))

    with pytest.raises(Unavailable):
        await db.write(half)
    assert await replicas.version(db) == 1
