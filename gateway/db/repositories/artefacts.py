"""Artefacts: what builds made, by recipe digest."""

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.engine import Database
from gateway.db.models import Artefacts
from gateway.db.repositories.upsert import upsert
from gateway.db.rows import ArtefactRow

_COLUMNS = tuple(Artefacts.__table__.columns)


async def put(db: Database, row: ArtefactRow) -> None:
    """Keep an artefact; a build of the same recipe replaces it."""
    await db.write(lambda connection: upsert(connection, Artefacts, [msgspec.structs.asdict(row)], ["digest"]))


async def get(db: Database, digest: str) -> ArtefactRow | None:
    """The artefact of this recipe, if it was built."""

    async def work(connection: AsyncConnection) -> ArtefactRow | None:
        result = await connection.execute(select(*_COLUMNS).where(Artefacts.digest == digest))
        row = result.mappings().first()
        return None if row is None else msgspec.convert(dict(row), ArtefactRow)

    return await db.read(work)


async def list_all(db: Database) -> tuple[ArtefactRow, ...]:
    """All artefacts, newest first."""

    async def work(connection: AsyncConnection) -> tuple[ArtefactRow, ...]:
        result = await connection.execute(select(*_COLUMNS).order_by(Artefacts.created_at.desc(), Artefacts.digest))
        return tuple(msgspec.convert(dict(row), ArtefactRow) for row in result.mappings())

    return await db.read(work)


async def remove(db: Database, digest: str) -> None:
    """Forget an artefact; its files are not touched."""
    await db.write(lambda connection: connection.execute(delete(Artefacts).where(Artefacts.digest == digest)))
