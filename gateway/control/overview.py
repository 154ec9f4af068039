"""What an operator sees at a glance: pools, replicas, rates and what changed, put together from rows and counters."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from gateway.db.engine import Database
from gateway.db.errors import DatabaseError
from gateway.db.repositories import builds, decisions, replicas
from gateway.db.rows import BuildRow, ReplicaRow, ScaleDecision
from gateway.serve.catalog import Catalog, Live, Pool
from telemetry.window import Rates, Snapshot

RECENT = 12  # events shown


class Tile(msgspec.Struct, frozen=True):
    """One replica on the board."""

    id: str
    state: str
    running: int
    waiting: int
    slots: int
    kv_used: float | None
    reason: str


class PoolView(msgspec.Struct, frozen=True):
    name: str
    tier: str
    kind: str
    model: str
    status: str  # ready | starting | at zero | building | down
    waiting: int
    replicas: tuple[Tile, ...]
    rates: Rates
    why: str  # of the last change of its replica count


class Event(msgspec.Struct, frozen=True):
    """Something that changed, and why. `at`: Unix seconds."""

    at: float
    title: str
    text: str


class Overview(msgspec.Struct, frozen=True):
    """One picture; `at` in Unix seconds, rates over the last minute. `stale`: the database does not answer."""

    at: float
    version: int
    system: Rates
    waiting: int
    running: int
    pools: tuple[PoolView, ...]
    events: tuple[Event, ...]
    stale: str = ""


class _Rows(msgspec.Struct, frozen=True):
    replicas: Sequence[ReplicaRow] = ()
    decisions: Sequence[ScaleDecision] = ()
    builds: Sequence[BuildRow] = ()
    stale: str = ""


class Watch(msgspec.Struct, frozen=True):
    """Where the picture comes from."""

    db: Database
    catalog: Callable[[], Catalog]
    live: Live
    rates: Callable[[float], Snapshot]
    clock: Callable[[], float] = time.time

    async def look(self) -> Overview:
        """One look. A database that does not answer leaves the board empty and says so; it raises nothing."""
        try:
            rows = await self._rows()
        except DatabaseError as error:
            rows = _Rows(stale=str(error))
        now = self.clock()
        return overview(now, self.catalog(), self.live, self.rates(now), rows)

    async def _rows(self) -> _Rows:
        board, changes, built = await asyncio.gather(
            replicas.list_all(self.db), decisions.recent(self.db, RECENT), builds.list_all(self.db)
        )
        return _Rows(board, changes, built)


def overview(now: float, catalog: Catalog, live: Live, rates: Snapshot, rows: _Rows) -> Overview:
    pools = tuple(_pool(pool, live, rates, rows) for pool in catalog.pools.values())
    events = sorted(_events(rows), key=lambda event: event.at, reverse=True)
    return Overview(
        at=now,
        version=catalog.version,
        system=rates.minute.system,
        waiting=sum(live.waiting.values()),
        running=sum(live.inflight.values()),
        pools=pools,
        events=tuple(events[:RECENT]),
        stale=rows.stale,
    )


def _pool(pool: Pool, live: Live, rates: Snapshot, rows: _Rows) -> PoolView:
    board = sorted((row for row in rows.replicas if row.pool == pool.name), key=lambda row: row.id)
    building = [row for row in rows.builds if row.open and row.pool == pool.name]
    why = next((change.reason for change in rows.decisions if change.pool == pool.name), "")
    return PoolView(
        name=pool.name,
        tier=pool.tier,
        kind=pool.kind,
        model=next((row.served_model for row in board if row.served_model), pool.served_model),
        status=_status(pool, board, building),
        waiting=live.waiting.get(pool.name, 0),
        replicas=tuple(
            Tile(row.id, row.state, row.running, row.waiting, row.slots, row.kv_used, row.reason) for row in board
        ),
        rates=rates.minute.pools.get(pool.name, Rates()),
        why=building[0].message if building else why,
    )


def _status(pool: Pool, board: Sequence[ReplicaRow], building: Sequence[BuildRow]) -> str:
    if any(row.state == "ready" for row in board):
        return "ready"
    if building:
        return "building"
    if any(row.state == "joining" for row in board):
        return "starting"
    return "at zero" if pool.rests_at_zero else "down"


def _events(rows: _Rows) -> Iterator[Event]:
    for change in rows.decisions:
        yield Event(change.at, f"{change.pool} {change.before} → {change.after}", change.reason)
    for row in rows.builds:
        yield Event(row.ended_at or row.started_at or row.queued_at, f"Build {row.state}", _told(row))
    yield from _lost(rows.replicas)


def _told(row: BuildRow) -> str:
    done = f", {row.progress:.0%}" if row.state == "running" else ""
    return f"{row.pool or row.digest}{done}: {row.message}" if row.message else f"{row.pool or row.digest}{done}"


def _lost(board: Iterable[ReplicaRow]) -> Iterator[Event]:
    for row in board:
        if row.state in ("draining", "gone") and row.reason:
            yield Event(row.changed_at, f"{row.id} is {row.state}", row.reason)
