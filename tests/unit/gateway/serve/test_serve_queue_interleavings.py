import asyncio
import random

import pytest

from backends.types import ReplicaId
from gateway.serve.errors import NoReplica, QueueFull
from tests.support.waiting import Fleet, replica


@pytest.mark.parametrize("seed", range(25))
async def test_any_interleaving_keeps_the_slots_the_order_and_the_counts(seed):
    """Arrivals, ends, cancellations, deadlines, failing replicas and new catalogs in a random order."""
    draw = random.Random(seed)
    names = ["a", "b", "c"]
    slots = {name: draw.randint(1, 3) for name in names}
    fleet = Fleet(*(replica(name, slots[name]) for name in names), limit=20)
    tasks: list[asyncio.Task[None]] = []
    ends: list[str] = []

    async def client(number: int) -> None:
        try:
            await fleet.request(number, draw.choice([0.0, 0.0, 0.001]), draw.choice([0.002, 5.0, 5.0]))
            ends.append("done")
        except (QueueFull, NoReplica):
            ends.append("refused")
        except asyncio.CancelledError:
            ends.append("left")

    for number in range(150):
        match draw.randint(0, 9):
            case 0 if tasks:
                draw.choice(tasks).cancel()
            case 1:
                present = [name for name in names if draw.random() < 0.7]
                fleet.swap(*(replica(name, slots[name]) for name in present))
            case 2:
                fleet.live.blocked ^= {ReplicaId(draw.choice(names))}
                fleet.queue.poke_all()
            case _:
                tasks.append(asyncio.create_task(client(number)))
        assert all(count <= slots[name] for name, count in fleet.live.inflight.items())
        assert fleet.live.waiting.get("p", 0) <= 20
        for _ in range(draw.randint(0, 3)):
            await asyncio.sleep(0)
    fleet.live.blocked.clear()
    fleet.swap(*(replica(name, slots[name]) for name in names))
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert all(fleet.most[name] <= slots[name] for name in fleet.most)
    assert "done" in ends
    fleet.assert_clean()
