"""Engine builds: one row a recipe digest, from the queue to the end, with its owner's sign of life."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, RowMapping, delete, false, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.engine import Database
from gateway.db.models import Builds
from gateway.db.repositories.upsert import put_if
from gateway.db.rows import BuildRow, BuildState

_COLUMNS = tuple(Builds.__table__.columns)
_OPEN = ("queued", "running")


async def enqueue(
    db: Database, digest: str, recipe: dict[str, Any], *, pool: str | None, now: float, again: bool = False
) -> bool:
    """Put a build in the queue; True if it was not there, so that a message must be sent.

    One that is queued, running or done is left alone; a failed or cancelled one starts over only where `again` is set.
    """

    row = msgspec.structs.asdict(BuildRow(digest=digest, recipe=recipe, pool=pool, queued_at=now))
    ended = Builds.state.not_in(_OPEN) if again else false()
    return await db.write(lambda connection: put_if(connection, Builds, row, ["digest"], ended))


async def get(db: Database, digest: str) -> BuildRow | None:
    """One build."""
    return await db.read(lambda connection: _find(connection, digest))


async def list_all(db: Database, states: Sequence[BuildState] = ()) -> tuple[BuildRow, ...]:
    """Builds, newest first; those in `states`, or all."""
    query = select(*_COLUMNS).order_by(Builds.queued_at.desc(), Builds.digest)
    if states:
        query = query.where(Builds.state.in_(states))

    async def work(connection: AsyncConnection) -> tuple[BuildRow, ...]:
        return tuple(_row(row) for row in (await connection.execute(query)).mappings())

    return await db.read(work)


async def start(db: Database, digest: str, *, owner: str, log: str, now: float) -> BuildRow | None:
    """Claim a queued build for `owner`; None if it is not queued (someone has it, it ended, or is not known)."""

    async def work(connection: AsyncConnection) -> BuildRow | None:
        values = {"state": "running", "owner": owner, "log": log, "started_at": now, "heartbeat_at": now}
        values |= {"progress": 0.0, "message": "", "ended_at": None, "attempts": Builds.attempts + 1}
        changed = await _change(connection, (Builds.digest == digest) & (Builds.state == "queued"), values)
        return await _find(connection, digest) if changed else None

    return await db.write(work)


async def report(db: Database, digest: str, *, owner: str, progress: float, message: str, now: float) -> bool:
    """Progress (0..1) and a sign of life. False: go no further; it was cancelled, or is no longer the owner's."""

    async def work(connection: AsyncConnection) -> bool:
        values = {"progress": progress, "message": message, "heartbeat_at": now}
        if not await _change(connection, _running(digest, owner), values):
            return False
        return not await connection.scalar(select(Builds.cancel).where(Builds.digest == digest))

    return await db.write(work)


async def finish(db: Database, digest: str, *, owner: str, message: str, now: float) -> None:
    """It is done."""
    values = {"state": "done", "progress": 1.0, "message": message, "ended_at": now, "heartbeat_at": now}
    await db.write(lambda connection: _change(connection, _running(digest, owner), values))


async def fail(db: Database, digest: str, *, owner: str, message: str, now: float) -> None:
    """It failed, or was cancelled where somebody wanted that; `message` says why."""

    async def work(connection: AsyncConnection) -> None:
        wanted = await connection.scalar(select(Builds.cancel).where(Builds.digest == digest))
        values = {"state": "cancelled" if wanted else "failed", "message": message, "ended_at": now}
        await _change(connection, _running(digest, owner), values)

    await db.write(work)


async def cancel(db: Database, digest: str, *, now: float) -> bool:
    """Stop a build: a queued one at once, a running one as soon as its worker sees the wish. False: nothing to stop."""

    async def work(connection: AsyncConnection) -> bool:
        stopped = {"state": "cancelled", "message": "cancelled before it began", "ended_at": now, "cancel": True}
        if await _change(connection, (Builds.digest == digest) & (Builds.state == "queued"), stopped):
            return True
        running = (Builds.digest == digest) & (Builds.state == "running")
        return await _change(connection, running, {"cancel": True})

    return await db.write(work)


async def release(db: Database, digest: str, *, owner: str, now: float, died: bool = False) -> bool:
    """Put a running build back into the queue; False if it is no longer that owner's.

    `died`: its worker died over it, so the attempt counts; else the worker was only asked to leave.
    """
    values: dict[str, Any] = {"state": "queued", "owner": "", "progress": 0.0, "queued_at": now, "heartbeat_at": None}
    if died:
        values["message"] = "its worker died; queued again"
    else:
        values |= {"message": "its worker left; queued again", "attempts": Builds.attempts - 1}
    return await db.write(lambda connection: _change(connection, _running(digest, owner), values))


async def withdraw(db: Database, digest: str) -> None:
    """Take a queued build out again, as if nobody had asked."""
    which = (Builds.digest == digest) & (Builds.state == "queued")
    await db.write(lambda connection: connection.execute(delete(Builds).where(which)))


def _running(digest: str, owner: str) -> ColumnElement[bool]:
    return (Builds.digest == digest) & (Builds.state == "running") & (Builds.owner == owner)


async def _change(connection: AsyncConnection, which: ColumnElement[bool], values: dict[str, Any]) -> bool:
    return (await connection.execute(update(Builds).where(which).values(values))).rowcount > 0


async def _find(connection: AsyncConnection, digest: str) -> BuildRow | None:
    row = (await connection.execute(select(*_COLUMNS).where(Builds.digest == digest))).mappings().first()
    return None if row is None else _row(row)


def _row(row: RowMapping) -> BuildRow:
    return msgspec.convert(dict(row), BuildRow)
