"""Finished requests: written in batches, read newest first, forgotten when old."""

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.engine import Database
from gateway.db.models import Requests
from telemetry.record import RequestRecord

Write = Callable[[AsyncConnection], Awaitable[object]]

ROWS = 100  # of one statement on SQLite

_COLUMNS = tuple(column for column in Requests.__table__.columns if column.name != "number")
_FIELDS = RequestRecord.__struct_fields__
_JSON = _FIELDS.index("because")
_ROW = f"({', '.join('?' * len(_FIELDS))})"
_SQLITE_INSERT = f"INSERT INTO requests ({', '.join(_FIELDS)}) VALUES {_ROW}"  # noqa: S608  our own names
_SQLITE_MANY = _SQLITE_INSERT + f", {_ROW}" * (ROWS - 1)


async def add_many(db: Database, records: Sequence[RequestRecord]) -> None:
    """Write a batch in one transaction."""
    if records:
        work = _sqlite(records) if db.dialect == "sqlite" else _any(records)
        await db.write(work)


def _any(records: Sequence[RequestRecord]) -> Write:
    values = [msgspec.structs.asdict(record) for record in records]
    return lambda connection: connection.execute(insert(Requests), values)


def _sqlite(records: Sequence[RequestRecord]) -> Write:
    """Straight to the driver, many rows a statement: there is one row for every request a gateway answers, and after
    each statement the driver's thread has to wait until the event loop's lets it go on.
    """
    plain = [_plain(record) for record in records]
    whole = len(plain) - len(plain) % ROWS
    many = [tuple(chain.from_iterable(plain[start : start + ROWS])) for start in range(0, whole, ROWS)]

    async def work(connection: AsyncConnection) -> None:
        for values in many:
            await connection.exec_driver_sql(_SQLITE_MANY, values)
        if plain[whole:]:
            await connection.exec_driver_sql(_SQLITE_INSERT, plain[whole:])

    return work


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
    values = msgspec.structs.astuple(record)
    return (*values[:_JSON], msgspec.json.encode(record.because).decode(), *values[_JSON + 1 :])
