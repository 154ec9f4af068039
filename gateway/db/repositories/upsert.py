"""Insert-or-update, which each database spells in its own way."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import Table


async def upsert(
    connection: AsyncConnection, table: type[Table], rows: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> None:
    """Write the rows; where `key` exists already, replace the other columns. Every row names the same columns."""
    if not rows:
        return
    await connection.execute(_statement(connection.dialect.name, table, list(rows[0]), key), list(rows))


def _statement(dialect: str, table: type[Table], columns: Sequence[str], key: Sequence[str]) -> Insert:
    insert: Any = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    others = {name: insert.excluded[name] for name in columns if name not in key}
    statement: Insert = insert.on_conflict_do_update(index_elements=list(key), set_=others)
    return statement
