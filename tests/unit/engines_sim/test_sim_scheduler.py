from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.sim.cache import PagedCache
from engines.sim.scheduler import Job, Scheduler, Speed


def job(prompt, output, first=0):
    return Job(array("I", range(first, first + prompt)), array("I", range(10_000, 10_000 + output)))


def scheduler(blocks=100, size=4, **speed):
    return Scheduler(Speed(**speed), PagedCache(blocks, size))


def drive(one, limit=10_000):
    """Run to the end; every step with what it did and how long it took."""
    steps = []
    while (step := one.plan()) is not None:
        steps.append((step.seconds, one.finish(step)))
        assert len(steps) < limit
    return steps


def test_prefill_takes_its_time_and_brings_the_first_token():
    one = scheduler(prefill_rate=100, decode_rate=10, batch_tokens=50)
    a = job(120, 3)
    one.submit(a)
    steps = drive(one)
    assert [seconds for seconds, _ in steps] == pytest.approx([0.5, 0.5, 0.2, 0.1, 0.1])
    assert [parts[0].produces for _, parts in steps] == [0, 0, 1, 1, 1]
    assert a.done
    assert a.produced == 3


def test_a_cached_prefix_costs_nothing():
    one = scheduler(prefill_rate=100, decode_rate=10, batch_tokens=1000)
    first, second = job(100, 1), job(100, 1)
    one.submit(first)
    drive(one)
    one.submit(second)
    ((seconds, _),) = drive(one)
    assert second.hit == 96
    assert seconds == pytest.approx(0.04)


def test_more_than_the_slots_wait_in_order():
    one = scheduler(slots=2)
    jobs = [job(4, 2, first=100 * at) for at in range(4)]
    for each in jobs:
        one.submit(each)
    one.plan()
    assert one.running == jobs[:2]
    assert list(one.waiting) == jobs[2:]


def test_decoding_together_is_free_unless_a_total_is_given():
    def per_step(**speed):
        one = scheduler(slots=4, prefill_rate=0, decode_rate=10, **speed)
        for at in range(4):
            one.submit(job(2, 3, first=at * 10))
        return [seconds for seconds, _ in drive(one)]

    assert per_step() == pytest.approx([0, 0.1, 0.1])
    assert per_step(decode_total=20) == pytest.approx([0, 0.2, 0.2])


def test_prefill_is_shared_by_the_running():
    one = scheduler(slots=2, prefill_rate=100, batch_tokens=30)
    a, b = job(20, 1), job(40, 1, first=500)
    one.submit(a)
    one.submit(b)
    steps = drive(one)
    assert [[(part.job is a, part.tokens) for part in parts] for _, parts in steps] == [
        [(True, 20), (False, 10)],
        [(False, 30)],
    ]
    assert steps[0][0] == pytest.approx(0.3)


def test_a_prefill_holds_up_decodes_for_one_batch_at_most():
    one = scheduler(slots=2, prefill_rate=100, decode_rate=10, batch_tokens=50)
    a, b = job(4, 10), job(200, 1, first=500)
    one.submit(a)
    one.finish(one.plan())
    one.submit(b)
    step = one.plan()
    assert step.seconds == pytest.approx(0.5 + 0.1)
    assert {part.produces for part in step.parts} == {0, 1}


def test_speculation_brings_several_tokens_a_step():
    one = scheduler(prefill_rate=0, decode_rate=10, tokens_per_step=4)
    a = job(4, 10)
    one.submit(a)
    assert [parts[0].produces for _, parts in drive(one)] == [1, 4, 4, 1]


def test_a_cancelled_job_frees_its_slot_at_once():
    one = scheduler(slots=1)
    a, b = job(8, 5), job(8, 5, first=50)
    one.submit(a)
    one.submit(b)
    step = one.plan()
    one.cancel(a)
    assert one.running == []
    assert one.cache.held == 0
    assert one.finish(step) == []
    one.plan()
    assert one.running == [b]
    one.cancel(b)
    one.cancel(b)  # a second time does nothing
    assert one.plan() is None


def test_a_waiting_job_can_be_cancelled():
    one = scheduler(slots=1)
    a, b = job(8, 5), job(8, 5, first=50)
    one.submit(a)
    one.submit(b)
    one.plan()
    one.cancel(b)
    assert not one.waiting


def test_what_can_never_run_is_refused():
    one = scheduler(blocks=2, size=4)
    assert one.fits(6, 2)
    with pytest.raises(ValueError, match="longer than the KV cache"):
        one.submit(job(6, 3))


def test_the_youngest_gives_way_where_the_cache_is_full():
    one = scheduler(blocks=6, size=4, slots=2, prefill_rate=0, decode_rate=0)
    a, b = job(8, 12), job(8, 12, first=500)
    one.submit(a)
    one.submit(b)
    drive(one)
    assert one.preemptions > 0
    assert a.done
    assert b.done
    assert one.cache.held == 0


def test_reserving_waits_instead():
    one = scheduler(blocks=6, size=4, slots=2, prefill_rate=0, decode_rate=0, reserve=True)
    a, b = job(8, 12), job(8, 12, first=500)
    one.submit(a)
    one.submit(b)
    one.plan()
    assert one.running == [a]
    assert list(one.waiting) == [b]


def test_without_an_answer_the_prompt_is_all():
    one = scheduler(prefill_rate=100, batch_tokens=6)
    a = job(10, 0)
    one.submit(a)
    assert sum(seconds for seconds, _ in drive(one)) == pytest.approx(0.1)
    assert a.done


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=8),
    slots=st.integers(1, 3),
    batch=st.integers(1, 16),
    per_step=st.integers(1, 3),
    reserve=st.booleans(),
)
def test_everything_submitted_is_answered_in_full(shapes, slots, batch, per_step, reserve):
    speed = {"slots": slots, "batch_tokens": batch, "tokens_per_step": per_step, "reserve": reserve}
    one = scheduler(blocks=8, size=4, **speed)
    jobs = [job(prompt, output, first=family * 100) for prompt, output, family in shapes]
    for each in jobs:
        one.submit(each)
    produced = dict.fromkeys(jobs, 0)
    while (step := one.plan()) is not None:
        assert len(one.running) <= slots
        assert step.seconds > 0
        assert sum(part.tokens for part in step.parts if part.job.produced == 0) <= batch
        for part in one.finish(step):
            produced[part.job] += part.produces
    assert all(each.done for each in jobs)
    assert all(produced[each] == len(each.output) for each in jobs)
    assert all((each.hit or 0) < len(each.prompt) for each in jobs)
    assert one.cache.held == 0
