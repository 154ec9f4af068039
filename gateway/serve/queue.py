"""Waiting for a free slot of a pool: bounded, in order, with a deadline.

    async with queue.turn(pool, deadline) as waited:
        if waited:
            plans = decide(...)     # again: things may have changed
        plan = ...                  # the best one in this pool whose replica has a free slot, else another pool's
        held.enter_context(lease(live, plan.replica, released=partial(queue.poke, plan.pool.name)))

Nobody overtakes: whoever comes while others wait, waits. A turn is given when the pool has a free slot that no other
turn is about to take, and its holder must take one, or give up the pool, before it waits again. How many turns may be
given is worked out from the catalog and the requests in flight each time, not carried along, so no wake-up can be lost:
a slot given back, a replica that appears and a turn not used all lead to the same sum.
"""

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from functools import partial

import msgspec
from typing_extensions import override

from backends.types import ReplicaId
from gateway.serve.catalog import Catalog, Live, Pool
from gateway.serve.errors import NoReplica, QueueFull

MEMORY = 0.2  # weight of the newest gap between two turns
USUAL_ANSWER = 200.0  # tokens, until a pool has shown what it writes
NONE: frozenset[ReplicaId] = frozenset()
SHORTEST, LONGEST = 1.0, 60.0  # seconds a client is told to wait


class _Line:
    """Those who wait for one pool, first come first, and the turns that are out."""

    __slots__ = ("gap", "last", "turns", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[asyncio.Future[bool], AbstractSet[ReplicaId]] = {}  # with the replicas each would not take
        self.turns = 0
        self.gap: float | None = None  # seconds between two turns while there is a queue, smoothed
        self.last: float | None = None  # when the last turn was given, if others waited on

    def note(self, now: float) -> None:
        """A turn is given now."""
        if self.last is not None:
            gap = now - self.last
            self.gap = gap if self.gap is None else self.gap + MEMORY * (gap - self.gap)
        self.last = now if self.waiters else None


class QueueStats(msgspec.Struct, frozen=True):
    """`turns`: given, and not yet used or passed on."""

    waiting: int
    turns: int


class PoolQueue:
    """The queues of all pools. `live.waiting` shows how many wait; a pool where nobody does is not in it."""

    def __init__(self, catalog: Callable[[], Catalog], live: Live, clock: Callable[[], float]) -> None:
        self._catalog = catalog
        self._live = live
        self._clock = clock
        self._lines: dict[str, _Line] = {}

    def turn(
        self, pool: Pool, deadline: float, without: AbstractSet[ReplicaId] = NONE
    ) -> AbstractAsyncContextManager[bool]:
        """Wait until `pool` has a free slot for this request; take it inside the block, without awaiting anything.

        Gives whether there was a wait, so that things may have changed. `deadline`: on the clock. `without`: replicas
        whose slots this request would not take. Raises QueueFull where too many wait already, or when the deadline
        has come, and NoReplica. A pool that is no longer in the catalog gives everybody a turn, so that they look
        elsewhere.
        """
        line = self._line(pool.name)
        return _Turn(partial(self._begin_turn, pool, line, deadline, without), partial(self._end_turn, pool.name, line))

    def poke(self, pool: str) -> None:
        """A slot of this pool may have become free: give out as many turns as there are slots to take."""
        line = self._lines.get(pool)
        if line is None or not line.waiters:
            return
        for waiter, without in tuple(line.waiters.items()):
            if waiter.done():  # its deadline has come, or its client has left, in this very moment
                continue
            if self._spare(pool, line, without):
                del line.waiters[waiter]
                line.turns += 1
                line.note(self._clock())
                waiter.set_result(True)
            elif not without:
                break  # then there is none for those behind it either
        self._show(pool, line)

    def poke_all(self) -> None:
        """The catalog is new, or a replica is no longer held back."""
        pools = self._catalog().pools
        for name, line in tuple(self._lines.items()):
            self.poke(name)
            if name not in pools and not line.waiters and not line.turns:
                del self._lines[name]

    def stats(self) -> dict[str, QueueStats]:
        return {name: QueueStats(len(line.waiters), line.turns) for name, line in self._lines.items()}

    def _line(self, pool: str) -> _Line:
        line = self._lines.get(pool)
        if line is None:
            line = self._lines[pool] = _Line()
        return line

    async def _wait(self, pool: Pool, line: _Line, deadline: float, without: AbstractSet[ReplicaId]) -> None:
        """Until a turn is given. Raises QueueFull, NoReplica."""
        if len(line.waiters) >= pool.queue_limit:
            raise QueueFull(
                f"{len(line.waiters)} requests wait for pool '{pool.name}' already, which is its limit.",
                retry_after=self._retry_after(pool, line),
            )
        began = self._clock()
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        line.waiters[waiter] = without
        self._show(pool.name, line)
        timer = loop.call_later(max(0.0, deadline - began), _expire, waiter)
        try:
            given = await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.done() and waiter.result():
                self._end_turn(pool.name, line)  # it came in the very moment the client left: pass it on
            raise
        finally:
            timer.cancel()
            line.waiters.pop(waiter, None)
            self._show(pool.name, line)
        if not given:
            now = self._catalog().pools.get(pool.name)
            if now is None or not now.replicas:
                raise NoReplica(
                    f"Pool '{pool.name}' has no replica, and none became ready in {self._clock() - began:.1f} s.",
                    retry_after=self._retry_after(pool, line),
                )
            raise QueueFull(
                f"No slot of pool '{pool.name}' became free in {self._clock() - began:.1f} s.",
                retry_after=self._retry_after(pool, line),
            )

    async def _begin_turn(self, pool: Pool, line: _Line, deadline: float, without: AbstractSet[ReplicaId]) -> bool:
        self.poke(pool.name)  # those before it come first
        if self._spare(pool.name, line, without):
            line.turns += 1
            return False
        await self._wait(pool, line, deadline, without)
        return True

    def _end_turn(self, pool: str, line: _Line) -> None:
        line.turns -= 1
        self.poke(pool)

    def _spare(self, name: str, line: _Line, without: AbstractSet[ReplicaId]) -> bool:
        """Whether there are more free slots than turns out."""
        pool = self._catalog().pools.get(name)
        if pool is None:
            return True
        free = -line.turns
        for replica in pool.replicas:
            if replica.id not in self._live.blocked and replica.id not in without:
                free += max(0, replica.slots - self._live.inflight.get(replica.id, 0))
                if free > 0:
                    return True
        return False

    def _show(self, pool: str, line: _Line) -> None:
        if line.waiters:
            self._live.waiting[pool] = len(line.waiters)
        else:
            self._live.waiting.pop(pool, None)

    def _retry_after(self, pool: Pool, line: _Line) -> float:
        """Seconds until one more request would have had its turn, going by how fast the queue moves."""
        slots = sum(replica.slots for replica in pool.replicas)
        if line.gap is not None:
            seconds = line.gap * (len(line.waiters) + 1)
        elif slots:
            seconds = self._live.output_tokens.get(pool.name, USUAL_ANSWER) / pool.decode_rate
            seconds *= (len(line.waiters) + 1) / slots
        else:
            seconds = pool.cold_start
        return min(max(seconds, SHORTEST), LONGEST)


class _Turn(AbstractAsyncContextManager[bool]):
    """A class, because event loops keep a register of the generators that are open."""

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: Callable[[], Awaitable[bool]], end: Callable[[], None]) -> None:
        self._begin = begin
        self._end = end

    @override
    async def __aenter__(self) -> bool:
        return await self._begin()

    @override
    async def __aexit__(self, *_: object) -> None:
        self._end()


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
