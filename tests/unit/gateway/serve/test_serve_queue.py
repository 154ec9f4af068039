import asyncio
from time import monotonic

import pytest

from backends.types import ReplicaId
from gateway.serve.catalog import Catalog, Pool
from gateway.serve.errors import NoReplica, QueueFull
from gateway.serve.queue import PoolQueue
from tests.support.waiting import Fleet, replica, settle

SOON = 0.03  # seconds


async def test_a_free_slot_is_taken_without_waiting():
    fleet = Fleet(replica("a", 2))
    async with asyncio.timeout(1):
        await asyncio.gather(fleet.request(1), fleet.request(2))
    fleet.assert_clean()


async def test_first_come_first_served_and_never_more_than_the_slots():
    fleet = Fleet(replica("a", 2), replica("b", 1))
    await asyncio.gather(*(fleet.request(number, 0.001) for number in range(40)))
    assert fleet.order == list(range(40))
    assert fleet.most == {"a": 2, "b": 1}
    fleet.assert_clean()


async def test_who_waits_is_counted():
    fleet, work = Fleet(replica("a")), asyncio.Event()
    tasks = [asyncio.create_task(fleet.request(number, work)) for number in range(4)]
    await settle()
    assert fleet.live.waiting == {"p": 3}
    work.set()
    await asyncio.gather(*tasks)
    fleet.assert_clean()


async def test_one_slot_given_back_wakes_one():
    fleet = Fleet(replica("a", 3))
    works = [asyncio.Event() for _ in range(8)]
    tasks = [asyncio.create_task(fleet.request(number, work)) for number, work in enumerate(works)]
    await settle()
    assert fleet.order == [0, 1, 2]
    works[1].set()
    await settle()
    assert fleet.order == [0, 1, 2, 3]
    assert fleet.live.waiting == {"p": 4}
    for work in works:
        work.set()
    await asyncio.gather(*tasks)
    fleet.assert_clean()


async def test_a_new_replica_wakes_as_many_as_it_has_slots():
    fleet, work = Fleet(), asyncio.Event()
    tasks = [asyncio.create_task(fleet.request(number, work)) for number in range(6)]
    await settle()
    assert fleet.live.waiting == {"p": 6}
    fleet.swap(replica("a", 4))
    await settle()
    assert fleet.order == [0, 1, 2, 3]
    assert fleet.live.waiting == {"p": 2}
    work.set()
    await asyncio.gather(*tasks)
    fleet.assert_clean()


async def test_nobody_overtakes_those_who_wait():
    fleet, work = Fleet(replica("a")), asyncio.Event()
    first = asyncio.create_task(fleet.request("first", work))
    await settle()
    second = asyncio.create_task(fleet.request("second"))
    await settle()
    work.set()
    third = asyncio.create_task(fleet.request("third"))
    await asyncio.gather(first, second, third)
    assert fleet.order == ["first", "second", "third"]


async def test_a_full_queue_refuses_at_once():
    fleet, work = Fleet(replica("a"), limit=2), asyncio.Event()
    tasks = [asyncio.create_task(fleet.request(number, work)) for number in range(3)]
    await settle()
    with pytest.raises(QueueFull, match="2 requests wait") as caught:
        await fleet.request("late")
    assert caught.value.status == 503
    assert 1 <= caught.value.retry_after <= 60
    assert fleet.live.waiting == {"p": 2}
    work.set()
    await asyncio.gather(*tasks)
    fleet.assert_clean()


async def test_a_pool_without_a_queue_refuses_where_it_has_no_slot():
    fleet, work = Fleet(replica("a"), limit=0), asyncio.Event()
    task = asyncio.create_task(fleet.request(1, work))
    await settle()
    with pytest.raises(QueueFull):
        await fleet.request(2)
    work.set()
    await task
    await fleet.request(3)
    fleet.assert_clean()


async def test_the_deadline_ends_the_wait():
    fleet, work = Fleet(replica("a")), asyncio.Event()
    task = asyncio.create_task(fleet.request(1, work))
    await settle()
    with pytest.raises(QueueFull, match="became free") as caught:
        async with asyncio.timeout(2):
            await fleet.request(2, patience=SOON)
    assert caught.value.retry_after >= 1
    assert fleet.live.waiting == {}
    work.set()
    await task
    fleet.assert_clean()


async def test_a_deadline_that_is_past_still_takes_a_slot_that_is_free():
    fleet = Fleet(replica("a"))
    await fleet.request(1, patience=-1)
    fleet.swap()
    with pytest.raises(NoReplica, match="no replica"):
        await fleet.request(2, patience=-1)
    fleet.assert_clean()


async def test_a_pool_at_zero_says_when_its_first_replica_may_be_there():
    fleet = Fleet()
    fleet.pool = Pool("p", cold_start=17.0, scalable=True)
    with pytest.raises(NoReplica) as caught:
        await fleet.request(1, patience=SOON)
    assert caught.value.retry_after == 17.0


async def test_a_waiter_that_leaves_is_not_given_a_turn():
    fleet, work = Fleet(replica("a")), asyncio.Event()
    tasks = [asyncio.create_task(fleet.request(number, work)) for number in range(3)]
    await settle()
    tasks[1].cancel()
    work.set()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    await asyncio.gather(tasks[0], tasks[2])
    assert fleet.order == [0, 2]
    fleet.assert_clean()


async def test_a_turn_that_comes_in_the_moment_its_waiter_leaves_is_passed_on():
    fleet, first = Fleet(replica("a")), asyncio.Event()
    tasks = [asyncio.create_task(fleet.request(0, first)), *(asyncio.create_task(fleet.request(n)) for n in (1, 2))]
    await settle()
    fleet.live.inflight.clear()  # the slot is free
    fleet.queue.poke("p")  # and given to 1, who has not run yet
    assert fleet.queue.stats()["p"].turns == 1
    tasks[1].cancel()
    await settle()
    assert fleet.order == [0, 2]
    first.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all((one.waiting, one.turns) == (0, 0) for one in fleet.queue.stats().values())


async def test_a_turn_that_is_not_used_goes_to_the_next():
    fleet, work = Fleet(replica("a")), asyncio.Event()
    task = asyncio.create_task(fleet.request(1, work))
    await settle()
    declined = []

    async def looks_and_leaves():
        async with fleet.queue.turn(fleet.pool, monotonic() + 5):
            declined.append(1)

    leaver = asyncio.create_task(looks_and_leaves())
    await settle()
    last = asyncio.create_task(fleet.request(2))
    await settle()
    work.set()
    await asyncio.gather(task, leaver, last)
    assert (declined, fleet.order) == ([1], [1, 2])
    fleet.assert_clean()


async def test_an_error_inside_a_turn_gives_it_back():
    fleet = Fleet(replica("a"))
    with pytest.raises(RuntimeError):
        async with fleet.queue.turn(fleet.pool, monotonic() + 5):
            raise RuntimeError
    fleet.assert_clean()
    await fleet.request(1)


async def test_a_replica_that_is_held_back_has_no_slots():
    fleet = Fleet(replica("a", 4))
    fleet.live.blocked.add(ReplicaId("a"))
    task = asyncio.create_task(fleet.request(1))
    await settle()
    assert fleet.live.waiting == {"p": 1}
    fleet.live.blocked.clear()
    fleet.queue.poke_all()
    await task
    fleet.assert_clean()


async def test_a_pool_that_is_gone_lets_everybody_go():
    fleet, work = Fleet(replica("a")), asyncio.Event()
    task = asyncio.create_task(fleet.request(0, work))
    await settle()
    released = []

    async def waits():
        async with fleet.queue.turn(fleet.pool, monotonic() + 5):
            released.append(1)

    waiters = [asyncio.create_task(waits()) for _ in range(3)]
    await settle()
    fleet.catalog = Catalog()
    fleet.queue.poke_all()
    await asyncio.gather(*waiters)
    assert released == [1, 1, 1]
    work.set()
    await task
    fleet.queue.poke_all()
    assert fleet.queue.stats() == {}


async def test_a_retry_does_not_wait_for_the_replica_that_failed_it():
    fleet, work = Fleet(replica("a"), replica("b")), asyncio.Event()
    busy = [asyncio.create_task(fleet.request(number, work)) for number in range(2)]
    await settle()
    taken = []

    async def retry():
        async with fleet.queue.turn(fleet.pool, monotonic() + 5, without={ReplicaId("a")}):
            taken.append({one.id for one in fleet.pool.replicas if one.id not in fleet.live.inflight})

    first = asyncio.create_task(retry())
    other = asyncio.create_task(fleet.request("other"))
    await settle()
    fleet.live.inflight.pop(ReplicaId("a"))
    fleet.queue.poke("p")
    await settle()
    assert (taken, fleet.order) == ([], [0, 1, "other"])  # what the first cannot use, the next one gets
    work.set()
    await asyncio.gather(*busy, first, other)
    assert "b" in taken[0]
    assert fleet.live.waiting == {}


async def test_a_newcomer_takes_what_those_before_it_would_not():
    fleet = Fleet(replica("a"))
    stuck = asyncio.create_task(_turn(fleet, without={ReplicaId("a")}, patience=0.05))
    await settle()
    await fleet.request("newcomer", 0, 0.01)
    with pytest.raises(QueueFull):
        await stuck
    fleet.assert_clean()


async def test_a_retry_that_nobody_can_serve_keeps_the_others_moving():
    fleet = Fleet(replica("a"))
    stuck = asyncio.create_task(_turn(fleet, without={ReplicaId("a")}, patience=0.2))
    await settle()
    assert fleet.live.waiting == {"p": 1}
    await asyncio.gather(*(fleet.request(number) for number in range(5)))
    assert sorted(fleet.order) == [0, 1, 2, 3, 4]
    with pytest.raises(QueueFull):
        await stuck
    fleet.assert_clean()


async def _turn(fleet, without, patience):
    async with fleet.queue.turn(fleet.pool, monotonic() + patience, without):
        pass


async def test_the_wait_that_is_told_follows_the_pace_of_the_queue():
    now = 0.0
    fleet = Fleet(replica("a"), limit=8)
    fleet.queue = PoolQueue(lambda: fleet.catalog, fleet.live, lambda: now)
    works = [asyncio.Event() for _ in range(9)]
    tasks = [asyncio.create_task(fleet.request(number, work, 1e6)) for number, work in enumerate(works)]
    await settle()
    for work in works[:4]:
        now += 3.0
        work.set()
        await settle()
    refill = [asyncio.create_task(fleet.request(number, 0, 1e6)) for number in range(9, 13)]
    await settle()
    with pytest.raises(QueueFull) as caught:
        await fleet.request("late", 0, 1e6)
    assert caught.value.retry_after == pytest.approx(9 * 3.0)
    for work in works:
        work.set()
    await asyncio.gather(*tasks, *refill)
    fleet.assert_clean()
    now += 1000.0  # nobody waits: this says nothing of the queue's pace
    works = [asyncio.Event() for _ in range(10)]
    tasks = [asyncio.create_task(fleet.request(number, work, 1e6)) for number, work in enumerate(works[:9])]
    await settle()
    works[0].set()
    await settle()
    tasks.append(asyncio.create_task(fleet.request(9, works[9], 1e6)))
    await settle()
    with pytest.raises(QueueFull) as caught:
        await fleet.request("late", 0, 1e6)
    assert caught.value.retry_after <= 9 * 3.0
    for work in works:
        work.set()
    await asyncio.gather(*tasks)
    fleet.assert_clean()


async def test_pools_wait_apart():
    fleet = Fleet(replica("a"))
    other = Pool("q", replicas=(replica("c"),))
    fleet.catalog = Catalog(pools={"p": fleet.pool, "q": other})
    work = asyncio.Event()
    tasks = [asyncio.create_task(fleet.request(number, work)) for number in range(2)]
    await settle()
    async with fleet.queue.turn(other, monotonic() + 1):
        assert fleet.live.waiting == {"p": 1}
    work.set()
    await asyncio.gather(*tasks)
    fleet.assert_clean()
