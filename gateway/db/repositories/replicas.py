"""Replicas: what the control loop knows of them, and the version that tells gateways to look again."""

from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import RowMapping, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from backends.types import Load
from gateway.db.engine import Database
from gateway.db.models import Marks, Replicas
from gateway.db.repositories.upsert import upsert
from gateway.db.rows import ReplicaRow, ReplicaState

CATALOG_VERSION = "catalog_version"
CONTROL_BEAT = "control_beat"
_COLUMNS = tuple(Replicas.__table__.columns)
_ROUTING = ("pool", "url", "served_model", "incarnation", "slots", "state")


class Picture(msgspec.Struct, frozen=True):
    """All replicas, and a version that is at most as new as they are."""

    version: int
    rows: tuple[ReplicaRow, ...]


class Signs(msgspec.Struct, frozen=True):
    """What tells a gateway whether to look closer."""

    version: int
    beat: float | None  # Unix seconds of the control loop's last sign of life; None: there never was one


async def put(db: Database, row: ReplicaRow) -> None:
    """Write one replica whole. The version grows if routing may care: not for load, pid or reason."""

    async def work(connection: AsyncConnection) -> None:
        before = await _find(connection, row.id)
        await upsert(connection, Replicas, [msgspec.structs.asdict(row)], ["id"])
        if before is None or any(getattr(before, name) != getattr(row, name) for name in _ROUTING):
            await _bump(connection)

    await db.write(work)


async def set_state(db: Database, replica: str, state: ReplicaState, *, reason: str, now: float) -> bool:
    """Change one replica's state; False where there is no such replica. The same state again only renews the reason."""

    async def work(connection: AsyncConnection) -> bool:
        before = await _find(connection, replica)
        if before is None:
            return False
        changed = before.state != state
        values = {"state": state, "reason": reason, "changed_at": now if changed else before.changed_at}
        await connection.execute(update(Replicas).where(Replicas.id == replica).values(values))
        if changed:
            await _bump(connection)
        return True

    return await db.write(work)


async def update_load(db: Database, loads: Mapping[str, Load]) -> None:
    """Write loads by replica id; the version stays. Unknown ids are ignored."""
    if not loads:
        return

    async def work(connection: AsyncConnection) -> None:
        for replica, load in loads.items():
            values = {"running": load.running, "waiting": load.waiting, "kv_used": load.kv_used}
            await connection.execute(update(Replicas).where(Replicas.id == replica).values(values))

    await db.write(work)


async def remove(db: Database, ids: Sequence[str]) -> None:
    """Forget replicas. The version grows if one was there."""
    if not ids:
        return

    async def work(connection: AsyncConnection) -> None:
        result = await connection.execute(delete(Replicas).where(Replicas.id.in_(ids)))
        if result.rowcount:
            await _bump(connection)

    await db.write(work)


async def list_all(db: Database, pool: str | None = None) -> tuple[ReplicaRow, ...]:
    """All replicas, or one pool's, in the order of their ids."""
    return (await picture(db, pool)).rows


async def picture(db: Database, pool: str | None = None) -> Picture:
    """Version and replicas together."""

    async def work(connection: AsyncConnection) -> Picture:
        number = await _version(connection)  # first: rows that are newer than their version are read again, not missed
        query = select(*_COLUMNS).order_by(Replicas.id)
        if pool is not None:
            query = query.where(Replicas.pool == pool)
        result = await connection.execute(query)
        return Picture(number, tuple(_row(row) for row in result.mappings()))

    return await db.read(work)


async def version(db: Database) -> int:
    """A number that grows with every change that matters to routing."""
    return await db.read(_version)


async def beat(db: Database, now: float) -> None:
    """The control loop lives: to be called about once a second, else gateways trust its rows no longer."""
    values = {"name": CONTROL_BEAT, "value": int(now)}
    await db.write(lambda connection: upsert(connection, Marks, [values], ["name"]))


async def signs(db: Database) -> Signs:
    """The version and the control loop's sign of life."""

    async def work(connection: AsyncConnection) -> Signs:
        marks = {row.name: row.value for row in await connection.execute(select(Marks.name, Marks.value))}
        return Signs(marks.get(CATALOG_VERSION, 0), marks.get(CONTROL_BEAT))

    return await db.read(work)


async def _version(connection: AsyncConnection) -> int:
    return await connection.scalar(select(Marks.value).where(Marks.name == CATALOG_VERSION)) or 0


async def _find(connection: AsyncConnection, replica: str) -> ReplicaRow | None:
    result = await connection.execute(select(*_COLUMNS).where(Replicas.id == replica))
    row = result.mappings().first()
    return None if row is None else _row(row)


async def _bump(connection: AsyncConnection) -> None:
    await connection.execute(update(Marks).where(Marks.name == CATALOG_VERSION).values(value=Marks.value + 1))


def _row(row: RowMapping) -> ReplicaRow:
    return msgspec.convert(dict(row), ReplicaRow)
