"""Opening the database: one engine, short transactions, and a second try where another process holds the lock."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import event, make_url
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.db.errors import BadUrl, MissingDriver, Unavailable, Unwritable
from gateway.settings.extras import install

T = TypeVar("T")

BUSY_SECONDS = 3.0  # how long SQLite waits for another process's lock
TRIES = 3
WRITING = "turnout_writing"
_DATA = "22"  # PostgreSQL's class of errors about values: out of range, NUL in a text
_PASSING = frozenset({"40001", "40P01"})  # PostgreSQL: serialization failure, deadlock


class Database:
    """An open database. Work is a function of one connection, run in one short transaction and safe to repeat."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        # Tasks of this process queue here rather than at SQLite's lock, whose wait is a poll.
        self._turn = asyncio.Lock() if engine.dialect.name == "sqlite" else nullcontext()

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    async def read(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run `work` on one consistent picture. Raises Unavailable."""
        return await self._attempt(work, {})

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run `work` and commit; repeated from the start where a lock was in the way. Raises Unavailable."""
        async with self._turn:
            return await self._attempt(work, {WRITING: True})

    async def _attempt(self, work: Callable[[AsyncConnection], Awaitable[T]], options: dict[str, Any]) -> T:
        for attempt in range(1, TRIES + 1):
            try:
                return await self._once(work, options)
            except OverflowError as error:  # SQLite's driver, of a whole number over 64 bits
                raise Unwritable(words(error)) from error
            except DBAPIError as error:
                if str(getattr(error.orig, "sqlstate", "")).startswith(_DATA):
                    raise Unwritable(words(error)) from error
                if attempt == TRIES or not _passes(error):
                    raise Unavailable(words(error)) from error
            except (SQLAlchemyError, OSError) as error:
                raise Unavailable(words(error)) from error
            await asyncio.sleep(0.01 * 2**attempt)
        raise AssertionError("unreachable")

    async def _once(self, work: Callable[[AsyncConnection], Awaitable[T]], options: dict[str, Any]) -> T:
        async with self.engine.connect() as connection:
            ready = await connection.execution_options(**options)
            async with ready.begin():
                return await work(ready)


@asynccontextmanager
async def open_database(url: str) -> AsyncGenerator[Database, None]:
    """Yield the database at `url`, whose tables `migrate` has made. Raises BadUrl, MissingDriver."""
    engine = connect(url)
    try:
        yield Database(engine)
    finally:
        await engine.dispose()


def connect(url: str) -> AsyncEngine:
    """An engine for the URL; nothing is opened yet. Raises BadUrl, MissingDriver."""
    address = parse_url(url)
    if address.get_backend_name() == "postgresql":
        return create_async_engine(address, pool_size=4, max_overflow=4, pool_pre_ping=True, pool_timeout=10)
    Path(str(address.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = create_async_engine(address, pool_size=4, max_overflow=0, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def parse_url(url: str) -> URL:
    """The URL with the driver that we use. Raises BadUrl, MissingDriver."""
    try:
        address = make_url(url)
    except ArgumentError as error:
        raise BadUrl(f"The database URL cannot be read: {error}") from error
    name = address.get_backend_name()
    if name in ("postgresql", "postgres"):
        if find_spec("asyncpg") is None:
            raise MissingDriver(f"PostgreSQL needs the extra `postgres`: {install('postgres')}")
        return address.set(drivername="postgresql+asyncpg")
    if name == "sqlite" and address.database not in (None, "", ":memory:"):
        return address.set(drivername="sqlite+aiosqlite")
    raise BadUrl(f"{address.render_as_string()}: give a SQLite file (sqlite:///path) or postgresql://host/name.")


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver would begin transactions by itself, too late and never as a writer.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA synchronous=NORMAL")  # safe with WAL: a power cut may lose the last commits, nothing else
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later cannot wait for the lock: SQLite fails it at once.
    writing = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _passes(error: DBAPIError) -> bool:
    """Whether the same work may succeed in a moment."""
    if getattr(error.orig, "sqlstate", None) in _PASSING or error.connection_invalidated:
        return True
    words = str(error.orig)
    return "database is locked" in words or "database table is locked" in words


def words(error: BaseException) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return f"The database does not answer: {cause}"
