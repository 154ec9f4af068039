"""Liveness, readiness and metrics: what orchestrators and Prometheus ask."""

from collections.abc import Callable

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from gateway.serve.catalog import Catalog


class PoolHealth(msgspec.Struct, frozen=True):
    ready: int
    scalable: bool


class Health(msgspec.Struct, frozen=True):
    """`status`: ok, or why not."""

    status: str
    catalog_version: int = 0
    pools: dict[str, PoolHealth] = {}


def readiness(catalog: Catalog) -> tuple[Health, int]:
    """Ready (200) when some pool can answer, by a ready replica or by being woken; `status` names those that cannot."""
    pools = {name: PoolHealth(len(pool.replicas), pool.scalable) for name, pool in catalog.pools.items()}
    if not pools:
        return Health("no pools are known yet", catalog.version, pools), 503
    empty = sorted(name for name, pool in catalog.pools.items() if not pool.replicas and not pool.rests_at_zero)
    status = f"no ready replica in: {', '.join(empty)}" if empty else "ok"
    return Health(status, catalog.version, pools), 503 if len(empty) == len(pools) else 200


def health_routes(
    catalog: Callable[[], Catalog], exposition: Callable[[], tuple[bytes, str]]
) -> list[HTTPRouteHandler]:
    """`exposition` gives the metrics' text and its content type."""

    @get("/health/live", summary="The process runs", sync_to_thread=False)
    def live() -> Health:
        return Health("ok")

    @get("/health/ready", summary="Requests can be answered", sync_to_thread=False)
    def ready() -> Response[Health]:
        health, status = readiness(catalog())
        return Response(health, status_code=status)

    @get("/metrics", summary="Prometheus metrics", sync_to_thread=False)
    def metrics() -> Response[bytes]:
        text, kind = exposition()
        return Response(text, media_type=kind)

    return [live, ready, metrics]
