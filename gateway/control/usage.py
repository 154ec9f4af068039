"""Request records, written to the database in batches behind the request path's back."""

import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import islice

from gateway.control.beside import Pace, beside
from gateway.db.engine import Database
from gateway.db.errors import DatabaseError, Unwritable
from gateway.db.repositories import requests
from telemetry.record import RequestRecord

BATCH = 200  # records of one transaction: few enough that encoding them does not stall the event loop
BACKLOG = 10_000  # records kept while the database does not answer, about 10 MB
PAUSE = 0.5  # seconds between batches when there is little to write
RETRY = 2.0  # seconds until the next try when the database does not answer


class RecordWriter:
    """A bounded queue and its writer. `add` only appends; what does not fit is counted in `dropped`."""

    def __init__(self, db: Database, *, backlog: int = BACKLOG, pause: float = PAUSE, retry: float = RETRY) -> None:
        self._db = db
        self._limit = backlog
        self._pause = pause
        self._retry = retry
        self._waiting: deque[RequestRecord] = deque()
        self.pace = Pace()
        self._log = logging.getLogger("turnout.usage")
        self.written = 0
        self.dropped = 0
        self.failing = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, record: RequestRecord) -> None:
        """Take a record; never waits, never raises."""
        if len(self._waiting) >= self._limit:
            self.dropped += 1
            return
        self._waiting.append(record)
        if len(self._waiting) >= BATCH and not self.failing:
            self.pace.hurry()

    async def write(self) -> bool:
        """Write one batch. False: the database does not answer; the records wait on."""
        batch = list(islice(self._waiting, BATCH))
        try:
            written = await self._add(batch)
        except DatabaseError as error:
            if not self.failing:
                self._log.warning("Request records cannot be written; up to %d are kept: %s", self._limit, error)
            self.failing = True
            return False
        if self.failing:
            self._log.warning("Request records are written again; %d were dropped so far.", self.dropped)
        self.failing = False
        for _ in batch:
            self._waiting.popleft()
        self.written += written
        return True

    async def _add(self, batch: Sequence[RequestRecord]) -> int:
        """How many were written: where one cannot be, it alone is dropped."""
        try:
            await requests.add_many(self._db, batch)
        except Unwritable as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                return await self._add(batch[:middle]) + await self._add(batch[middle:])
            self.dropped += 1
            self._log.warning("The record of request %s cannot be written: %s", batch[0].id, error)
            return 0
        return len(batch)

    async def run(self) -> None:
        """Write until the pace is stopped; then all that waits, or as much as the database takes."""
        while not self.pace.stopped:
            await self.pace.pause(self._retry if self.failing else self._pause)
            await self._drain(BATCH)
        await self._drain(1)

    async def _drain(self, least: int) -> None:
        """One batch of whatever waits, and more as long as `least` records do: a transaction costs as much as many."""
        wanted = 1
        while len(self._waiting) >= wanted and await self.write():
            wanted = least


@asynccontextmanager
async def recording(writer: RecordWriter) -> AsyncGenerator[RecordWriter, None]:
    """Write until the block is left; what is still there then is written before the block ends."""
    async with beside(writer.run, writer.pace):
        yield writer
