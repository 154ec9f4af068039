"""Databases for tests: a SQLite file, or a PostgreSQL database of one's own."""

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from gateway.db.engine import Database, open_database, parse_url
from gateway.db.migrate import migrate

POSTGRES = os.environ.get("TURNOUT_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")


@asynccontextmanager
async def fresh_url(kind: str, folder: Path) -> AsyncIterator[str]:
    """The URL of an empty database, which is removed at the end."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'turnout.db'}"
        return
    server = create_async_engine(parse_url(POSTGRES), isolation_level="AUTOCOMMIT")
    name = f"turnout_test_{uuid.uuid4().hex[:12]}"
    try:
        await _run(server, f"CREATE DATABASE {name}")
        try:
            yield parse_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
        finally:
            await _run(server, f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await server.dispose()


@asynccontextmanager
async def fresh_database(kind: str, folder: Path) -> AsyncIterator[Database]:
    """An open database with our tables, empty."""
    async with fresh_url(kind, folder) as url:
        await migrate(url)
        async with open_database(url) as db:
            yield db


async def _run(server, statement: str) -> None:
    try:
        async with server.connect() as connection:
            await connection.execute(text(statement))
    except OSError as error:
        if os.environ.get("TURNOUT_REQUIRE_ALL"):
            raise
        pytest.skip(f"PostgreSQL is not there: {error}")
