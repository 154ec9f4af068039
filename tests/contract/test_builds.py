"""Builds against a real database file, with make-believe work in a thread."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from engines.recipe import Recipe
from gateway.control.builds import (
    DEATHS,
    Builder,
    QueueUnreachable,
    UnknownBuild,
    recover,
    request_build,
    watch,
)
from gateway.control.owner import SILENCE, alive, this_process
from gateway.db.repositories import artefacts, builds
from gateway.db.rows import ArtefactRow
from tests.support.databases import fresh_database
from tests.support.processes import until


class Toy(Recipe, frozen=True, tag="toy"):
    size: int = 1


RECIPE = Toy(source="weights")
DIGEST = RECIPE.digest
ME = this_process()
DEAD = f"{socket.gethostname()}:999999999:1"
ELSEWHERE = "another-host:12:34"


def made(recipe, **_):
    source = recipe["source"]
    return ArtefactRow(digest=DIGEST, engine="toy", file=f"/{source}", bytes=1, sha256="0" * 64, manifest=recipe)


@pytest.fixture
async def db(tmp_path):
    async with fresh_database("sqlite", tmp_path) as database:
        yield database


@pytest.fixture
def sent():
    return []


def builder(db, tmp_path, work=made, owner=ME, stopping=lambda: False, clock=time.time):
    return Builder(db, work, owner, tmp_path, clock, stopping)


async def ask(db, sent, **options):
    return await request_build(db, RECIPE, sent.append, pool="small", now=1.0, **options)


# Asking


async def test_many_ask_and_one_message_is_sent(db, sent):
    rows = await asyncio.gather(*(ask(db, sent) for _ in range(5)))
    assert {row.state for row in rows} == {"queued"}
    assert sent == [DIGEST]
    assert rows[0].recipe == {"engine": "toy", "source": "weights", "size": 1}
    assert msgspec.convert(rows[0].recipe, Toy) == RECIPE


async def test_what_ended_starts_over_only_on_demand(db, sent, tmp_path):
    await ask(db, sent)
    await builder(db, tmp_path).perform(DIGEST)
    assert (await ask(db, sent)).state == "done"
    assert sent == [DIGEST]
    assert (await ask(db, sent, again=True)).state == "queued"
    assert sent == [DIGEST] * 2


async def test_what_cannot_be_sent_is_not_queued(db, sent):
    def unreachable(_digest):
        raise QueueUnreachable("no broker")

    with pytest.raises(QueueUnreachable):
        await request_build(db, RECIPE, unreachable, pool=None, now=1.0)
    assert await builds.list_all(db) == ()
    assert (await ask(db, sent)).state == "queued"
    assert sent == [DIGEST]


# Building


async def test_a_build_makes_an_artefact(db, sent, tmp_path):
    await ask(db, sent)
    assert await builder(db, tmp_path).perform(DIGEST) == "ended"
    row = await builds.get(db, DIGEST)
    assert (row.state, row.attempts, row.owner, row.log) == ("done", 1, ME, str(tmp_path / f"{DIGEST}.log"))
    assert (await artefacts.get(db, DIGEST)).file == "/weights"


async def test_messages_too_many_do_nothing(db, sent, tmp_path):
    assert await builder(db, tmp_path).perform("unknown") == "not mine"
    await ask(db, sent)
    one = builder(db, tmp_path)
    ended = await asyncio.gather(*(one.perform(DIGEST) for _ in range(3)))
    assert sorted(ended) == ["ended", "not mine", "not mine"]
    assert (await builds.get(db, DIGEST)).attempts == 1


@pytest.mark.parametrize(
    ("error", "words"), [(ValueError("no such weights"), "no such weights"), (KeyError(), "KeyError")]
)
async def test_whatever_it_raises_it_failed(db, sent, tmp_path, error, words):
    def fails(_recipe, **_):
        raise error

    await ask(db, sent)
    assert await builder(db, tmp_path, fails).perform(DIGEST) == "ended"
    row = await builds.get(db, DIGEST)
    assert (row.state, row.message) == ("failed", words)
    assert await artefacts.get(db, DIGEST) is None


async def test_progress_is_told_and_seen(db, sent, tmp_path):
    go_on = threading.Event()

    def slow(recipe, *, on_progress, **_):
        on_progress(0.25, "a quarter")
        assert go_on.wait(20)
        return made(recipe)

    await ask(db, sent)
    task = asyncio.create_task(builder(db, tmp_path, slow).perform(DIGEST))
    told = []
    async with asyncio.timeout(20):
        async for row in watch(db, DIGEST, interval=0.02):
            told.append((row.state, row.progress, row.message))
            if row.progress == 0.25:
                go_on.set()
    assert ("running", 0.25, "a quarter") in told
    assert told[-1] == ("done", 1.0, "done")
    assert len(told) == len(set(told))
    await task


async def test_watching_what_is_not_there(db):
    with pytest.raises(UnknownBuild, match="nothing"):
        await anext(watch(db, "nothing"))


async def is_running(db):
    return (await builds.get(db, DIGEST)).state == "running"


def until_cancelled(_recipe, *, cancelled, **_):
    deadline = time.monotonic() + 20
    while not cancelled():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    raise InterruptedError("told to stop")


async def test_a_wish_to_cancel_is_heard(db, sent, tmp_path):
    await ask(db, sent)
    task = asyncio.create_task(builder(db, tmp_path, until_cancelled).perform(DIGEST))
    await until(lambda: is_running(db))
    assert await builds.cancel(db, DIGEST, now=2.0)
    async with asyncio.timeout(20):
        assert await task == "ended"
    assert (await builds.get(db, DIGEST)).state == "cancelled"


async def test_a_worker_that_leaves_puts_its_build_back(db, sent, tmp_path):
    leaving = threading.Event()
    await ask(db, sent)
    task = asyncio.create_task(builder(db, tmp_path, until_cancelled, stopping=leaving.is_set).perform(DIGEST))
    await until(lambda: is_running(db))
    leaving.set()
    async with asyncio.timeout(20):
        assert await task == "put back"
    row = await builds.get(db, DIGEST)
    assert (row.state, row.attempts, row.owner) == ("queued", 0, "")
    assert await builder(db, tmp_path).perform(DIGEST) == "ended"


# Dead workers


async def claimed_by(db, sent, owner, heartbeat=10.0):
    await ask(db, sent)
    assert await builds.start(db, DIGEST, owner=owner, log="", now=heartbeat) is not None


async def test_a_message_that_comes_again_takes_over_from_the_dead(db, sent, tmp_path):
    await claimed_by(db, sent, DEAD)
    assert await builder(db, tmp_path).perform(DIGEST) == "ended"
    row = await builds.get(db, DIGEST)
    assert (row.state, row.attempts, row.owner) == ("done", 2, ME)


@pytest.mark.parametrize(("silence", "ended"), [(SILENCE - 1, "later"), (SILENCE + 1, "ended")])
async def test_another_hosts_worker_is_judged_by_its_silence(db, sent, tmp_path, silence, ended):
    await claimed_by(db, sent, ELSEWHERE, heartbeat=10.0)
    assert await builder(db, tmp_path, clock=lambda: 10.0 + silence).perform(DIGEST) == ended


async def test_a_starting_worker_sends_again_what_was_left(db, sent):
    await claimed_by(db, sent, DEAD)
    other = Toy(source="other")
    await request_build(db, other, sent.append, pool=None, now=2.0)
    living = Toy(source="living")
    await request_build(db, living, sent.append, pool=None, now=3.0)
    await builds.start(db, living.digest, owner=ME, log="", now=3.0)
    sent.clear()
    assert await recover(db, sent.append, now=4.0) == sent == [other.digest, DIGEST]  # oldest in the queue first
    assert (await builds.get(db, living.digest)).state == "running"


async def test_a_build_that_kills_its_workers_is_given_up(db, sent):
    await ask(db, sent)
    for death in range(DEATHS):
        assert (await builds.get(db, DIGEST)).state == "queued"
        await builds.start(db, DIGEST, owner=DEAD, log="", now=float(death))
        await recover(db, sent.append, now=float(death))
    row = await builds.get(db, DIGEST)
    assert (row.state, row.message) == (
        "failed",
        f"{DEATHS} workers died over this build; the last words are in its log",
    )


async def test_a_result_that_came_too_late_changes_nothing(db, sent, tmp_path):
    """The row was taken from this worker, which was believed dead, and another one has it."""
    go_on = threading.Event()

    def slow(recipe, **_):
        assert go_on.wait(20)
        return made(recipe)

    await ask(db, sent)
    task = asyncio.create_task(builder(db, tmp_path, slow).perform(DIGEST))
    await until(lambda: builds.release(db, DIGEST, owner=ME, now=1.0, died=True))
    await builds.start(db, DIGEST, owner=ELSEWHERE, log="", now=2.0)
    go_on.set()
    await task
    row = await builds.get(db, DIGEST)
    assert (row.state, row.owner) == ("running", ELSEWHERE)


# Owners


def test_this_process_lives():
    assert alive(ME, None, 0.0)
    host, pid, started = ME.split(":")
    assert (host, int(pid)) == (socket.gethostname(), os.getpid())
    assert not alive(f"{host}:{pid}:{int(started) + 1}", None, 0.0)  # another one under its number
    assert alive(f"{host}:{pid}:-", None, 0.0)  # a system that tells no start times
    assert not alive(f"{host}:999999999:-", None, 0.0)


def test_a_killed_process_is_dead_before_its_parent_has_noticed():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    owner = f"{socket.gethostname()}:{process.pid}:{started}"
    assert alive(owner, None, 0.0)
    process.kill()
    deadline = time.monotonic() + 20
    while alive(owner, None, 0.0):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.wait()
    process.stdin.close()
    assert not alive(owner, 1e12, 0.0)


@pytest.mark.parametrize("owner", [ELSEWHERE, "", "odd", "::", f"{socket.gethostname()}:x:1"])
def test_others_are_judged_by_their_last_sign(owner):
    assert alive(owner, 100.0, 100.0 + SILENCE - 1)
    assert not alive(owner, 100.0, 100.0 + SILENCE)
    assert not alive(owner, None, 100.0)
