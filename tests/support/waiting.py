"""A pool with slots, and clients that wait for one in the way of the pipeline."""

import asyncio
from functools import partial
from time import monotonic

from backends.types import Replica, ReplicaId
from gateway.serve.catalog import Catalog, Live, Pool
from gateway.serve.lease import lease
from gateway.serve.queue import PoolQueue


def replica(name: str, slots: int = 1) -> Replica:
    return Replica(ReplicaId(name), "", "m", slots=slots)


class Fleet:
    """A catalog that can be swapped, the counters, the queue, and what the pipeline does with them."""

    def __init__(self, *replicas: Replica, name: str = "p", limit: int = 64) -> None:
        self.live = Live()
        self.pool = Pool(name, replicas=replicas, queue_limit=limit, scalable=True)
        self.catalog = Catalog(pools={name: self.pool})
        self.queue = PoolQueue(lambda: self.catalog, self.live, monotonic)
        self.order: list[object] = []
        self.most: dict[str, int] = {}

    def swap(self, *replicas: Replica) -> None:
        self.pool = Pool(self.pool.name, replicas=replicas, queue_limit=self.pool.queue_limit, scalable=True)
        self.catalog = Catalog(pools={self.pool.name: self.pool})
        self.queue.poke_all()

    def free(self) -> Replica | None:
        for one in self.pool.replicas:
            if one.id not in self.live.blocked and self.live.inflight.get(one.id, 0) < one.slots:
                return one
        return None

    async def request(self, who: object, work: asyncio.Event | float = 0.0, patience: float = 5.0) -> None:
        """Wait for a turn, take a slot, work, give it back."""
        deadline = monotonic() + patience
        while True:
            async with self.queue.turn(self.pool, deadline):
                one = self.free()
                if one is None:
                    continue
                held = lease(self.live, one, partial(self.queue.poke, self.pool.name))
                held.__enter__()
            break
        try:
            self.order.append(who)
            for name, count in self.live.inflight.items():
                self.most[name] = max(self.most.get(name, 0), count)
            await (work.wait() if isinstance(work, asyncio.Event) else asyncio.sleep(work))
        finally:
            held.__exit__(None, None, None)

    def assert_clean(self) -> None:
        assert self.live.waiting == {}
        assert self.live.inflight == {}
        assert all((one.waiting, one.turns) == (0, 0) for one in self.queue.stats().values())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
