"""Scale decisions: kept with their reason, read newest first."""

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.engine import Database
from gateway.db.models import ScaleDecisions
from gateway.db.rows import ScaleDecision


async def add(db: Database, decision: ScaleDecision) -> None:
    """Keep a decision; its id is given by the database."""
    values = msgspec.structs.asdict(decision)
    del values["id"]
    await db.write(lambda connection: connection.execute(insert(ScaleDecisions).values(values)))


async def recent(db: Database, limit: int = 50, pool: str | None = None) -> tuple[ScaleDecision, ...]:
    """The last decisions, newest first; of one pool if it is named."""
    query = select(*ScaleDecisions.__table__.columns).order_by(ScaleDecisions.id.desc()).limit(limit)
    if pool is not None:
        query = query.where(ScaleDecisions.pool == pool)

    async def work(connection: AsyncConnection) -> tuple[ScaleDecision, ...]:
        result = await connection.execute(query)
        return tuple(msgspec.convert(dict(row), ScaleDecision) for row in result.mappings())

    return await db.read(work)


async def prune(db: Database, before: float) -> None:
    """Forget decisions older than `before` (Unix seconds)."""
    await db.write(lambda connection: connection.execute(delete(ScaleDecisions).where(ScaleDecisions.at < before)))
