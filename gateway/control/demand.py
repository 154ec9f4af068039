"""A gateway's report of the demand it sees, so that the control loop can scale by it."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from backends.types import ReplicaId
from gateway.control.beside import Pace, beside
from gateway.db.engine import Database
from gateway.db.errors import DatabaseError
from gateway.db.repositories import demand
from gateway.db.rows import DemandRow
from gateway.serve.catalog import Catalog, Live

QUIET = 1.0  # seconds after which an unchanged report is written again, as a sign of life


class DemandReporter:
    """Writes one row for each pool of the catalog: zero requests is a report too.

    `gateway` names this process among all that write; `clock` is the wall clock, in Unix seconds. `arrived` is told of
    each request, `poke` of one that must not wait for the next report (the first at a pool without replicas).
    """

    def __init__(
        self,
        db: Database,
        *,
        gateway: str,
        live: Live,
        catalog: Callable[[], Catalog],
        interval: float,
        clock: Callable[[], float],
    ) -> None:
        self._db = db
        self._gateway = gateway
        self._live = live
        self._catalog = catalog
        self._interval = interval
        self._clock = clock
        self._log = logging.getLogger("turnout.demand")
        self.pace = Pace()
        self._arrived: dict[str, int] = {}
        self._last: dict[str, float] = {}
        self._homes: dict[ReplicaId, str] = {}  # replica -> pool, kept while requests run on one that left the catalog
        self._written: list[DemandRow] = []
        self._written_at = float("-inf")
        self.errors = 0  # reports that could not be written, ever
        self.failing = False

    def arrived(self, pool: str) -> None:
        """A request came for this pool."""
        self._arrived[pool] = self._arrived.get(pool, 0) + 1
        self._last[pool] = self._clock()

    def poke(self) -> None:
        """Report at once."""
        self.pace.hurry()

    def rows(self, now: float) -> list[DemandRow]:
        """The report as it stands, in the order of the pools' names."""
        running = self._running()
        return [self._row(pool, running.get(pool, 0), now) for pool in sorted(self._catalog().pools)]

    async def report(self) -> None:
        """Write, unless the same was written a moment ago; a database that does not answer is noted, not raised."""
        now = self._clock()
        rows = self.rows(now)
        if rows == self._written and 0 <= now - self._written_at < QUIET:
            return
        try:
            await demand.put(self._db, self._gateway, rows, now)
        except DatabaseError as error:
            self.errors += 1
            if not self.failing:
                self._log.warning("Demand cannot be reported; pools keep their size: %s", error)
            self.failing = True
        else:
            self.failing = False
            self._written, self._written_at = rows, now

    async def run(self) -> None:
        """Report every `interval` seconds and when poked, until the pace is stopped; once more then."""
        while not self.pace.stopped:
            await self.report()
            await self.pace.pause(self._interval)
        await self.report()

    def _running(self) -> dict[str, int]:
        for pool in self._catalog().pools.values():
            for replica in pool.replicas:
                self._homes[replica.id] = pool.name
        inflight = {replica: count for replica, count in self._live.inflight.items() if count > 0}
        self._homes = {replica: self._homes[replica] for replica in inflight if replica in self._homes}
        running: dict[str, int] = {}
        for one, home in self._homes.items():
            running[home] = running.get(home, 0) + inflight[one]
        return running

    def _row(self, pool: str, running: int, now: float) -> DemandRow:
        waiting = self._live.waiting.get(pool, 0)
        if running or waiting:
            self._last[pool] = now
        return DemandRow(
            pool=pool,
            running=running,
            waiting=waiting,
            arrived=self._arrived.get(pool, 0),
            last_request_at=self._last.get(pool),
        )


@asynccontextmanager
async def reporting(reporter: DemandReporter) -> AsyncGenerator[DemandReporter, None]:
    """Report until the block is left, and once more then."""
    async with beside(reporter.run, reporter.pace):
        yield reporter
