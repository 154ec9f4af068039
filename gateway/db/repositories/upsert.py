"""Insert-or-update, which each database spells in its own way."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import Table


async def upsert(
    connection: AsyncConnection, table: type[Table], rows: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> None:
    """Write the rows; where `key` exists already, replace the other columns. Every row names the same columns."""
    if rows:
        await connection.execute(_statement(connection, table, list(rows[0]), key, None), list(rows))


async def put_if(
    connection: AsyncConnection,
    table: type[Table],
    row: Mapping[str, Any],
    key: Sequence[str],
    replace: ColumnElement[bool],
) -> bool:
    """Insert the row, or replace the present one where `replace` holds of it; whether it was written. In one step:
    of several that try at once, one succeeds.
    """
    result = await connection.execute(_statement(connection, table, list(row), key, replace), row)
    return result.rowcount > 0


def _statement(
    connection: AsyncConnection,
    table: type[Table],
    columns: Sequence[str],
    key: Sequence[str],
    replace: ColumnElement[bool] | None,
) -> Insert:
    insert: Any = postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
    others = {name: insert.excluded[name] for name in columns if name not in key}
    statement: Insert = insert.on_conflict_do_update(index_elements=list(key), set_=others, where=replace)
    return statement
