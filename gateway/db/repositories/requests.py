"""Finished requests: written in batches, read newest first, forgotten when old."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.engine import Database
from gateway.db.models import Requests
from telemetry.record import RequestRecord

_COLUMNS = tuple(column for column in Requests.__table__.columns if column.name != "number")
_FIELDS = RequestRecord.__struct_fields__
_SQLITE_INSERT = f"INSERT INTO requests ({', '.join(_FIELDS)}) VALUES ({', '.join('?' * len(_FIELDS))})"  # noqa: S608  our own names


async def add_many(db: Database, records: Sequence[RequestRecord]) -> None:
    """Write a batch in one transaction."""
    if not records:
        return
    if db.dialect == "sqlite":
        # Straight to the driver: half the CPU, and there is one row for every request a gateway answers.
        plain = [_plain(record) for record in records]
        await db.write(lambda connection: connection.exec_driver_sql(_SQLITE_INSERT, plain))
        return
    values = [msgspec.structs.asdict(record) for record in records]
    await db.write(lambda connection: connection.execute(insert(Requests), values))


async def recent(db: Database, limit: int = 100, pool: str | None = None) -> tuple[RequestRecord, ...]:
    """The last requests by their start, newest first; of one pool if it is named."""
    query = select(*_COLUMNS).order_by(Requests.at.desc(), Requests.number.desc()).limit(limit)
    if pool is not None:
        query = query.where(Requests.pool == pool)

    async def work(connection: AsyncConnection) -> tuple[RequestRecord, ...]:
        result = await connection.execute(query)
        return tuple(msgspec.convert(dict(row), RequestRecord) for row in result.mappings())

    return await db.read(work)


async def prune(db: Database, before: float) -> int:
    """Forget requests that began before `before` (Unix seconds); how many there were."""

    async def work(connection: AsyncConnection) -> int:
        return (await connection.execute(delete(Requests).where(Requests.at < before))).rowcount

    return await db.write(work)


def _plain(record: RequestRecord) -> tuple[object, ...]:
    """As SQLite keeps it: JSON as text."""
    return tuple(
        msgspec.json.encode(value).decode() if isinstance(value, dict) else value
        for value in msgspec.structs.astuple(record)
    )
