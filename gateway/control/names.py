"""Asking servers for the name of the model they serve, where neither the settings nor a control loop tell it."""

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from backends.errors import BackendError
from backends.types import Backend, Replica
from gateway.serve.catalog import Catalog, Pool

PATIENCE = 2.0  # seconds that a server gets to answer
AGAIN = 5.0  # seconds until one that did not is asked once more


class ModelNames:
    """What is known, by URL. Until a server's model is known it is not in the catalog: an alias never goes upstream."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = backends
        self._known: dict[str, str] = {}
        self._asked: dict[str, float] = {}

    def named(self, catalog: Catalog) -> Catalog:
        """The catalog with the names that are known, without the replicas whose is not."""
        pools = {name: _with(pool, self._named(pool.replicas)) for name, pool in catalog.pools.items()}
        return msgspec.structs.replace(catalog, pools=pools)

    async def ask(self, catalog: Catalog, now: float) -> bool:
        """Ask those that are not known and were not asked lately; whether something was learned. Raises nothing."""
        unknown = [
            (pool.backend, replica)
            for pool in catalog.pools.values()
            for replica in pool.replicas
            if not replica.served_model
            and replica.url not in self._known
            and now - self._asked.get(replica.url, float("-inf")) >= AGAIN
        ]
        self._asked.update((replica.url, now) for _, replica in unknown)
        return any(await asyncio.gather(*(self._learn(backend, replica) for backend, replica in unknown)))

    def _named(self, replicas: Iterable[Replica]) -> tuple[Replica, ...]:
        found = (one if one.served_model else _called(one, self._known.get(one.url, "")) for one in replicas)
        return tuple(one for one in found if one.served_model)

    async def _learn(self, backend: str, replica: Replica) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                names = await self._backends[backend].served_models(replica)
        except (BackendError, TimeoutError):
            return False
        if names:
            self._known[replica.url] = names[0]
        return bool(names)


def _called(replica: Replica, name: str) -> Replica:
    return msgspec.structs.replace(replica, served_model=name)


def _with(pool: Pool, replicas: tuple[Replica, ...]) -> Pool:
    return pool if replicas == pool.replicas else msgspec.structs.replace(pool, replicas=replicas)
