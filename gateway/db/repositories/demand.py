"""Demand: what each gateway reports, and what they say together."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import case, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.engine import Database
from gateway.db.models import DemandReports
from gateway.db.repositories.upsert import upsert
from gateway.db.rows import Demand, DemandRow


async def put(db: Database, gateway: str, rows: Sequence[DemandRow], now: float) -> None:
    """Replace one gateway's report on these pools. `now` in Unix seconds."""
    values = [{"gateway": gateway, "at": now, **msgspec.structs.asdict(row)} for row in rows]
    if values:
        await db.write(lambda connection: upsert(connection, DemandReports, values, ["gateway", "pool"]))


async def totals(db: Database, now: float, fresh_seconds: float) -> dict[str, Demand]:
    """By pool, over all gateways; running and waiting from reports younger than `fresh_seconds`.

    A pool that nobody ever reported is not in the answer: take `Demand()`, which is not `seen`.
    """
    report = DemandReports
    fresh = report.at >= now - fresh_seconds
    query = select(
        report.pool,
        func.sum(case((fresh, report.running), else_=0)).label("running"),
        func.sum(case((fresh, report.waiting), else_=0)).label("waiting"),
        func.sum(report.arrived).label("arrived"),
        func.max(report.last_request_at).label("last_request_at"),
        func.sum(case((fresh, 1), else_=0)).label("reports"),
    ).group_by(report.pool)

    async def work(connection: AsyncConnection) -> dict[str, Demand]:
        return {
            row.pool: Demand(
                running=int(row.running),
                waiting=int(row.waiting),
                arrived=int(row.arrived),
                last_request_at=row.last_request_at,
                seen=row.reports > 0,
            )
            for row in await connection.execute(query)
        }

    return await db.read(work)


async def prune(db: Database, before: float) -> None:
    """Forget reports older than `before` (Unix seconds): of gateways that are gone."""
    await db.write(lambda connection: connection.execute(delete(DemandReports).where(DemandReports.at < before)))
