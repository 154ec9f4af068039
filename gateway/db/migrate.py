"""Bringing the tables up to date, by one process at a time."""

import asyncio
import fcntl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.db.engine import WRITING, connect, words
from gateway.db.errors import Unavailable
from gateway.db.models import Table

LOCK_SECONDS = 60.0
_LOCK_NUMBER = 0x7475726E  # of the advisory lock in PostgreSQL: "turn"


async def migrate(url: str, revision: str = "head") -> None:
    """Upgrade the database at `url`, which is made if need be; several processes may call this at once.

    Needs no file beside the package. Raises BadUrl, MissingDriver, Unavailable.
    """
    async with _alone(url) as connection:
        await connection.run_sync(lambda sync: command.upgrade(_config(sync), revision))


async def downgrade(url: str, revision: str) -> None:
    """Go back to `revision`; "base" removes every table and what is in it."""
    async with _alone(url) as connection:
        await connection.run_sync(lambda sync: command.downgrade(_config(sync), revision))


async def differences(url: str) -> list[str]:
    """How the tables in the database differ from the models; empty when `migrate` has done all there is to do."""
    async with _alone(url) as connection:
        return await connection.run_sync(_differences)


def _differences(connection: Connection) -> list[str]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return [repr(one) for one in compare_metadata(context, Table.metadata)]


@asynccontextmanager
async def _alone(url: str) -> AsyncGenerator[AsyncConnection, None]:
    """A connection in one transaction, while every other process that wants the same waits."""
    engine = connect(url)
    try:
        async with _file_lock(engine), engine.connect() as connection:
            await _keep_wal(connection)
            writing = await connection.execution_options(**{WRITING: True})
            async with writing.begin():
                if engine.dialect.name == "postgresql":
                    await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK_NUMBER})
                yield connection
    except (SQLAlchemyError, OSError) as error:
        raise Unavailable(words(error)) from error
    finally:
        await engine.dispose()


@asynccontextmanager
async def _file_lock(engine: AsyncEngine) -> AsyncGenerator[None, None]:
    """For SQLite: switching to WAL fails at once where another process is busy, whatever the timeout."""
    if engine.dialect.name != "sqlite":
        yield
        return
    path = Path(f"{engine.url.database}.lock")
    with path.open("w") as file:  # noqa: ASYNC230 - an empty file, once
        for _ in range(int(LOCK_SECONDS / 0.05)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.05)
        else:
            raise Unavailable(f"Another process has been migrating the database for {LOCK_SECONDS:.0f} s ({path}).")
        yield  # closing the file gives the lock back


async def _keep_wal(connection: AsyncConnection) -> None:
    """Readers and the writer do not stop each other; stays with the file."""
    if connection.dialect.name == "sqlite":
        raw = await connection.get_raw_connection()
        cursor = await raw.driver_connection.execute("PRAGMA journal_mode=WAL")  # type: ignore[union-attr]
        await cursor.close()


def _config(connection: Connection) -> Config:
    config = Config()
    folder = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
