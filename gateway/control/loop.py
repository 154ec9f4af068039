"""The control process: artefacts ensured, replicas brought to the decided number, watched, and told to gateways."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from gateway.control.autoscale.loop import Scaler
from gateway.control.beside import Pace
from gateway.control.fleet.protocol import Fleet, Launch
from gateway.control.watch import Watch
from gateway.db.engine import Database
from gateway.db.errors import DatabaseError
from gateway.db.repositories import decisions, demand, replicas, requests
from gateway.db.rows import Demand
from gateway.settings import Settings

FRESH: Final = 3.5  # seconds that a gateway's report of demand counts; they report at least once a second
BEAT: Final = 1.0  # seconds between signs of life
PRUNE: Final = 600.0  # seconds between removals of old rows
KEEP_REPORTS: Final = 3600.0
DAY: Final = 86400.0
KEEP_DECISIONS: Final = 30 * DAY


class Supply(Protocol):
    """What a pool's replicas are started from."""

    async def launch(self, pool: str, now: float) -> Launch | None:
        """None while that is still being made, or cannot be."""
        ...


class ControlLoop:
    """One `step` at a time: look at what there is, say it in rows, decide, act. `clock` in Unix seconds.

    `local` runs the pools that are ours, `static` names the servers of all others.
    """

    def __init__(
        self,
        settings: Settings,
        db: Database,
        *,
        local: Fleet,
        static: Fleet,
        watch: Watch,
        scaler: Scaler,
        supply: Supply,
        pace: Pace,
        clock: Callable[[], float],
    ) -> None:
        self._db = db
        self._ours = tuple(name for name, entry in settings.pools.items() if entry.ours)
        self._interval = settings.control.interval
        self._keep_requests = settings.database.keep_requests * DAY
        self._local, self._static = local, static
        self._watch, self._scaler, self._supply = watch, scaler, supply
        self._pace = pace
        self._clock = clock
        self._log = logging.getLogger("turnout.control")
        self._last: dict[str, float] = {}
        self._failing = False

    async def begin(self) -> None:
        """Rows of an earlier control process speak of replicas that are gone. Raises Unavailable."""
        await replicas.remove(self._db, [row.id for row in await replicas.list_all(self._db)])

    async def run(self) -> None:
        """Step until the pace is stopped. Without a database replicas run on as they are."""
        while not self._pace.stopped:
            try:
                await self.step()
            except DatabaseError as error:
                if not self._failing:
                    self._log.warning("The database does not answer; replicas stay as they are: %s", error)
                self._failing = True
            else:
                self._failing = False
            await self._pace.pause(self._interval)

    async def step(self) -> None:
        """One round. Raises Unavailable."""
        now = self._clock()
        self._watch.follow([*await self._local.observe(), *await self._static.observe()])
        await self._watch.write(self._db)
        await self._replace_hung()
        demands = await demand.totals(self._db, now, FRESH)
        for pool in self._ours:
            await self._scale(pool, demands, now)
        await self._now_and_then("beat", BEAT, now, lambda: replicas.beat(self._db, now))
        await self._now_and_then("prune", PRUNE, now, lambda: self._prune(now))

    async def end(self, settle: float) -> None:
        """Gateways are told that every replica goes, and get `settle` seconds to hear it where there are any."""
        rows = await replicas.list_all(self._db)
        await replicas.remove(self._db, [row.id for row in rows])
        demands = await demand.totals(self._db, self._clock(), FRESH)
        if rows and any(one.seen for one in demands.values()):
            await asyncio.sleep(settle)

    async def _scale(self, pool: str, demands: Mapping[str, Demand], now: float) -> None:
        """A pool that rests at zero has nothing built for it before it is first wanted; requests wait meanwhile."""
        wanted = await self._scaler.step(self._db, pool, demands.get(pool, Demand()), self._watch.ready(pool), now)
        launch = await self._supply.launch(pool, now) if wanted else None
        if launch is not None or not wanted:
            await self._local.scale(pool, wanted, launch)

    async def _replace_hung(self) -> None:
        """Drained, a replica no longer counts, and the next `scale` fills its place. Servers of others stay."""
        ours = {unit.id for unit in await self._local.observe() if unit.phase == "running"}
        for name in ours.intersection(self._watch.hung()):
            self._log.warning("%s has not answered a probe for long; it is replaced", name)
            await self._local.drain(name)

    async def _now_and_then(self, what: str, seconds: float, now: float, work: Callable[[], Awaitable[None]]) -> None:
        if now - self._last.get(what, float("-inf")) >= seconds:
            self._last[what] = now
            await work()

    async def _prune(self, now: float) -> None:
        await demand.prune(self._db, now - KEEP_REPORTS)
        await decisions.prune(self._db, now - KEEP_DECISIONS)
        await requests.prune(self._db, now - self._keep_requests)
