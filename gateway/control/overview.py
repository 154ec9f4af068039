"""What an operator sees at a glance: pools, replicas, rates and what changed, put together from rows and counters."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from backends.types import ReplicaId
from gateway.control.picture import Moment, Overview, PoolView, Status, Tile
from gateway.control.publish import SILENCE
from gateway.control.words import USUAL, events, verdict
from gateway.db.engine import Database
from gateway.db.errors import DatabaseError
from gateway.db.repositories import builds, decisions, replicas
from gateway.db.rows import BuildRow, ReplicaRow, ScaleDecision
from gateway.serve.catalog import Catalog, Live, Pool
from telemetry.window import Rates, Span

RECENT: Final = 12  # events shown
KNOWN: Final = 100  # decisions looked at: a pool's own last one may be older than the last events
MINUTE: Final = 60  # seconds that rates are told from
BACK: Final = 240  # seconds of history that a page starts with: the window's five minutes less the first minute
STEP: Final = 5  # seconds between its moments

Spans = Callable[[float, int], Span]
"""The span of so many seconds (second argument) up to a time (Unix seconds)."""


class Rows(msgspec.Struct, frozen=True):
    """What the database says; `stale`: why it says nothing. `beat`: the control loop's last sign, Unix seconds."""

    replicas: Sequence[ReplicaRow] = ()
    decisions: Sequence[ScaleDecision] = ()
    builds: Sequence[BuildRow] = ()
    beat: float | None = None
    stale: str = ""


class Watch(msgspec.Struct, frozen=True):
    """Where the picture comes from."""

    db: Database
    catalog: Callable[[], Catalog]
    live: Live
    spans: Spans
    clock: Callable[[], float] = time.time

    async def look(self) -> Overview:
        """One look. A database that does not answer leaves what the catalog knows, and says so; it raises nothing."""
        try:
            rows = await self._rows()
        except DatabaseError as error:
            rows = Rows(stale=str(error))
        now = self.clock()
        return overview(now, self.catalog(), self.live, self.spans(now, MINUTE), rows)

    async def history(self) -> AsyncIterator[Moment]:
        """The last minutes, oldest first. The loop gets its turn between two moments: each costs a fraction of a ms."""
        now = self.clock()
        for back in range(BACK, 0, -STEP):
            yield Moment(now - back, self.spans(now - back, MINUTE).system)
            await asyncio.sleep(0)

    async def _rows(self) -> Rows:
        board, changes, built, signs = await asyncio.gather(
            replicas.list_all(self.db),
            decisions.recent(self.db, KNOWN),
            builds.list_all(self.db),
            replicas.signs(self.db),
        )
        return Rows(board, changes, built, signs.beat)


def overview(now: float, catalog: Catalog, live: Live, minute: Span, rows: Rows) -> Overview:
    """The picture at `now` (Unix seconds). Pure."""
    changed = sorted(events(rows.decisions, rows.builds, rows.replicas), key=lambda event: event.at, reverse=True)
    silence = now - rows.beat if rows.beat is not None else 0.0
    picture = Overview(
        at=now,
        version=catalog.version,
        system=minute.system,
        waiting=sum(live.waiting.values()),
        running=sum(live.inflight.values()),
        pools=tuple(_pool(pool, live, minute, rows) for pool in catalog.pools.values()),
        events=tuple(changed[:RECENT]),
        stale=rows.stale,
        silent=silence if silence >= SILENCE else None,
    )
    return msgspec.structs.replace(picture, verdict=verdict(picture))


def _pool(pool: Pool, live: Live, minute: Span, rows: Rows) -> PoolView:
    board = _board(pool, live, rows.replicas)
    built = [row for row in rows.builds if row.pool == pool.name]
    waiting = live.waiting.get(pool.name, 0)
    status = _status(pool, board, built, waiting)
    served = {row.served_model for row in rows.replicas if row.pool == pool.name and row.served_model}
    return PoolView(
        name=pool.name,
        tier=pool.tier,
        kind=pool.kind,
        model=min(served, default=pool.served_model),
        status=status,
        waiting=waiting,
        replicas=board,
        rates=minute.pools.get(pool.name, Rates()),
        why=_why(pool, status, board, built, rows.decisions),
    )


def _board(pool: Pool, live: Live, rows: Sequence[ReplicaRow]) -> tuple[Tile, ...]:
    """The rows, and the replicas that only the catalog knows: no control loop tells of them, or no database answers.

    Of two counts the larger is the true one: servers may not tell theirs, and have callers other than this gateway.
    """
    known = [row for row in rows if row.pool == pool.name]
    seen = {row.id for row in known}
    tiles = [_tile(row, live) for row in known]
    for replica in pool.replicas:
        if replica.id not in seen:
            running, blocked = live.inflight.get(replica.id, 0), replica.id in live.blocked
            tiles.append(Tile(replica.id, "ready", running, 0, replica.slots, None, "not probed", blocked=blocked))
    return tuple(sorted(tiles, key=lambda tile: (len(tile.id), tile.id)))  # 2 before 10


def _tile(row: ReplicaRow, live: Live) -> Tile:
    name = ReplicaId(row.id)
    running = max(row.running, live.inflight.get(name, 0))
    return Tile(
        row.id, row.state, running, row.waiting, row.slots, row.kv_used, row.reason, blocked=name in live.blocked
    )


def _status(pool: Pool, board: Sequence[Tile], built: Sequence[BuildRow], waiting: int) -> Status:
    ready = [tile for tile in board if tile.state == "ready"]
    states = {tile.state for tile in board}
    if not ready:
        return _asleep(pool, board, built)
    if all(tile.blocked for tile in ready):
        return "failing"
    if waiting:
        return "full"
    if "joining" in states:
        return "growing"
    return "shrinking" if "draining" in states else "ready"


def _asleep(pool: Pool, board: Sequence[Tile], built: Sequence[BuildRow]) -> Status:
    if any(row.open for row in built):
        return "building"
    if any(tile.state == "joining" and tile.reason in USUAL for tile in board):
        return "starting"
    resting = pool.rests_at_zero and not any(tile.state in ("joining", "gone") for tile in board)
    return "at zero" if resting else "down"


def _why(
    pool: Pool, status: Status, board: Sequence[Tile], built: Sequence[BuildRow], changes: Sequence[ScaleDecision]
) -> str:
    """Why it has as many replicas as it has, or why none of them answers."""
    if status == "building":
        row = next(row for row in built if row.open)
        return f"{row.message or 'started'}, {row.progress:.0%}" if row.state == "running" else "it waits for a worker"
    if status == "down":
        said = [f"{tile.id}: {tile.reason}" for tile in board if tile.reason]
        failed = [f"its build failed: {row.message}" for row in built if row.state == "failed"]
        return next(iter([*said, *failed]), "no replica is known")
    if not pool.scalable:
        return "one for each of its URLs"
    return next((change.reason for change in changes if change.pool == pool.name), "")
