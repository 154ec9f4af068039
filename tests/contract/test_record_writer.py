"""Request records on their way to a real database file."""

import asyncio
import logging

import msgspec
import pytest

from gateway.control.usage import BATCH, RecordWriter, recording
from gateway.db.engine import open_database
from gateway.db.migrate import downgrade, migrate
from gateway.db.repositories import requests
from telemetry.record import RequestRecord
from tests.support.databases import fresh_database
from tests.support.processes import until

RECORD = RequestRecord(id="r", at=1.0, operation="chat", caller="ann", model="auto", because={"wait": 0.5})


def record(number: int) -> RequestRecord:
    return msgspec.structs.replace(RECORD, id=str(number), at=float(number))


@pytest.fixture
async def db(tmp_path):
    async with fresh_database("sqlite", tmp_path) as database:
        yield database


async def test_all_that_waits_is_written_when_the_block_is_left(db):
    count = BATCH * 2 + 7
    writer = RecordWriter(db, pause=600.0)
    async with asyncio.timeout(20), recording(writer):
        for number in range(count):
            writer.add(record(number))
    assert (writer.written, writer.dropped, len(writer)) == (count, 0, 0)
    kept = await requests.recent(db, count + 1)
    assert [int(one.id) for one in reversed(kept)] == list(range(count))


async def test_a_whole_batch_is_written_at_once(db):
    writer = RecordWriter(db, pause=600.0)
    async with recording(writer):
        for number in range(BATCH):
            writer.add(record(number))
        await until(lambda: writer.written == BATCH)


async def test_a_few_are_written_after_a_pause(db):
    writer = RecordWriter(db, pause=0.02)
    async with recording(writer):
        writer.add(record(1))
        await until(lambda: requests.recent(db))


async def test_an_outage_keeps_a_bounded_backlog_and_loses_none_of_it(tmp_path, caplog):
    url = f"sqlite:///{tmp_path / 'turnout.db'}"
    await migrate(url)
    await downgrade(url, "base")
    async with open_database(url) as db:
        writer = RecordWriter(db, backlog=5, pause=0.01, retry=0.01)
        with caplog.at_level(logging.WARNING):
            async with recording(writer):
                for number in range(8):
                    writer.add(record(number))
                await until(lambda: writer.failing)
                await asyncio.sleep(0.05)
                assert (len(writer), writer.dropped, writer.written) == (5, 3, 0)
                assert len(caplog.records) == 1
                await migrate(url)
                await until(lambda: writer.written == 5)
                writer.add(record(9))
        assert [one.id for one in await requests.recent(db)] == ["9", "4", "3", "2", "1", "0"]
        assert "3 were dropped" in caplog.records[-1].message


async def test_a_database_that_is_gone_does_not_hold_the_end_up(tmp_path):
    async with open_database(f"sqlite:///{tmp_path / 'turnout.db'}") as db:
        writer = RecordWriter(db, pause=600.0, retry=600.0)
        async with asyncio.timeout(20), recording(writer):
            writer.add(record(1))
        assert (writer.written, len(writer), writer.failing) == (0, 1, True)


async def test_adding_neither_waits_nor_raises(tmp_path):
    """It is a plain call: no database is touched in it."""
    async with open_database(f"sqlite:///{tmp_path / 'missing' / 'turnout.db'}") as db:
        writer = RecordWriter(db, backlog=2)
        for number in range(4):
            writer.add(record(number))
        assert (len(writer), writer.dropped) == (2, 2)


async def test_a_record_that_cannot_be_written_is_dropped_alone(db, caplog):
    writer = RecordWriter(db, pause=0.01)
    async with recording(writer):
        for number in range(7):
            writer.add(record(number))
        writer.add(msgspec.structs.replace(record(7), prompt_tokens=2**70))
        writer.add(record(8))
        await until(lambda: len(writer) == 0)
        assert (writer.written, writer.dropped, writer.failing) == (8, 1, False)
    assert {one.id for one in await requests.recent(db)} == {*map(str, range(7)), "8"}
    assert "request 7 cannot be written" in caplog.text
