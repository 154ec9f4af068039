"""The scaling policy: a table of cases, and what holds for every history."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.autoscale.policy import Decision, Limits, decide
from gateway.control.autoscale.signal import Seen, Window

LIMITS = Limits(minimum=0, maximum=4, slots=4, idle_seconds=300, calm_seconds=60, stale_seconds=5)
NOW = 10_000.0


def seen(running=0, waiting=0, *, peak=None, at=NOW, since=NOW - 1000, busy_at=NOW, kv_used=None) -> Seen:
    return Seen(at, since, running, waiting, running + waiting if peak is None else peak, busy_at, kv_used)


@pytest.mark.parametrize(
    ("current", "what", "replicas", "cause"),
    [
        (0, seen(), 0, "steady"),
        (0, seen(waiting=1), 1, "wake"),
        (0, seen(waiting=9), 3, "wake"),  # one start for the whole burst, not one a request
        (0, seen(waiting=1000), 4, "wake"),
        (1, seen(running=4), 1, "steady"),
        (1, seen(running=4, waiting=1), 2, "demand rose"),  # a wait at the gateway counts, however quick the engine
        (1, seen(running=4, waiting=30), 4, "demand rose"),
        (2, seen(running=8, kv_used=0.95), 3, "kv cache"),
        (4, seen(running=8, kv_used=0.95), 4, "steady"),
        (3, seen(running=2, peak=5), 2, "demand fell"),
        (3, seen(running=2, peak=6), 3, "steady"),
        (2, seen(running=1, peak=1, since=NOW - 59), 2, "steady"),  # not calm for long enough
        (1, seen(), 1, "steady"),
        (1, seen(busy_at=NOW - 299), 1, "steady"),
        (1, seen(busy_at=NOW - 301), 0, "idle"),
        (3, seen(busy_at=NOW - 301), 0, "idle"),
        (3, None, 3, "unknown"),  # nobody reports: nothing is known
        (3, seen(at=NOW - 6, busy_at=NOW - 900), 3, "unknown"),  # reports stopped: not the same as no requests
        (0, seen(waiting=5, at=NOW - 6), 0, "unknown"),
        (7, seen(running=28), 4, "limits"),
        (7, None, 4, "limits"),
    ],
)
def test_table(current, what, replicas, cause):
    decision = decide(current, what, LIMITS, NOW)
    assert (decision.replicas, decision.cause) == (replicas, cause)
    assert decision.reason


def test_the_minimum_stands_even_when_nothing_is_known():
    limits = Limits(minimum=2, maximum=3)
    assert decide(0, None, limits, NOW) == Decision(2, "limits", "the minimum is 2")
    assert decide(2, seen(busy_at=NOW - 9999), limits, NOW).replicas == 2


def test_load_is_predicted_for_one_replica_less():
    """wire.md H: two replicas at 70 % of the KV cache and a threshold of 80 % went 2 -> 1 -> 2 for ever."""
    at_70_percent = seen(running=1, peak=1, kv_used=0.7)
    assert decide(2, at_70_percent, LIMITS, NOW).replicas == 2
    assert decide(2, seen(running=1, peak=1, kv_used=0.3), LIMITS, NOW).replicas == 1


def test_steps_down_are_a_calm_window_apart():
    quiet = seen(running=1, peak=1)
    assert decide(4, quiet, LIMITS, NOW, changed_at=NOW - 10).replicas == 4
    assert decide(4, quiet, LIMITS, NOW, changed_at=NOW - 61).replicas == 3


def test_reasons_carry_the_numbers():
    assert "4 running and 3 waiting on 4 slots" in decide(1, seen(running=4, waiting=3), LIMITS, NOW).reason
    assert "301 s" in decide(1, seen(busy_at=NOW - 301), LIMITS, NOW).reason
    assert "at most 2 requests in 60 s fit the 4 slots of 1" in decide(2, seen(running=1, peak=2), LIMITS, NOW).reason
    assert "at most 1 request in 60 s" in decide(2, seen(running=1, peak=1), LIMITS, NOW).reason
    assert decide(0, seen(waiting=1), LIMITS, NOW).reason == "1 request came while it was at zero"
    assert decide(0, seen(waiting=1000), LIMITS, NOW).reason == "1,000 requests came while it was at zero"


limits_st = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 8)).map(
    lambda t: Limits(minimum=min(t[:2]), maximum=max(t[:2]), slots=t[2])
)
seen_st = st.one_of(
    st.none(),
    st.builds(
        lambda at, age, running, waiting, more, idle, kv: Seen(
            at, at - age, running, waiting, running + waiting + more, at - idle, kv
        ),
        at=st.floats(0, 1000),
        age=st.floats(0, 500),
        running=st.integers(0, 60),
        waiting=st.integers(0, 60),
        more=st.integers(0, 60),
        idle=st.floats(0, 500),
        kv=st.one_of(st.none(), st.floats(0, 1)),
    ),
)


@given(st.integers(0, 9), seen_st, limits_st, st.floats(0, 2000))
def test_never_outside_the_limits(current, what, limits, now):
    assert limits.minimum <= decide(current, what, limits, now).replicas <= limits.maximum


@given(st.data(), limits_st, st.floats(0, 2000))
def test_without_fresh_reports_nothing_moves(data, limits, now):
    current = data.draw(st.integers(limits.minimum, limits.maximum))
    old = seen(running=50, waiting=50, at=now - limits.stale_seconds - 0.1)
    assert decide(current, None, limits, now).replicas == current
    assert decide(current, old, limits, now).replicas == current


@given(st.integers(1, 6), st.integers(0, 40), st.integers(1, 8), st.one_of(st.none(), st.floats(0, 1)))
def test_constant_demand_settles_and_stays(current, demand, slots, kv_total):
    """No flapping: under a demand that does not change, the count moves in one direction and then rests."""
    limits = Limits(minimum=1, maximum=6, slots=slots)
    counts = [current]
    for step in range(12):
        now = NOW + 100.0 * step
        kv = None if kv_total is None else min(1.0, kv_total / counts[-1])
        what = Seen(now, NOW - 500, demand, 0, demand, now if demand else NOW - 500, kv)
        counts.append(decide(counts[-1], what, limits, now, changed_at=now - 100).replicas)
    moves = [b - a for a, b in itertools.pairwise(counts) if a != b]
    assert all(move > 0 for move in moves) or all(move < 0 for move in moves)
    assert counts[-1] == counts[-2]


def window() -> Window:
    return Window(calm_seconds=60, stale_seconds=5)


def test_a_window_remembers_the_peak_for_the_calm_time():
    seen_by = window()
    assert seen_by.seen is None
    seen_by.report(0, running=3, waiting=4)
    for at in range(1, 100):
        seen_by.report(at, running=1, waiting=0)
        assert seen_by.seen is not None
        assert seen_by.seen.peak == (7 if at <= 60 else 1)
        assert seen_by.seen.since == 0


def test_idle_time_counts_from_the_last_demand_and_not_through_a_gap():
    seen_by = window()
    seen_by.report(0, running=1, waiting=0)
    seen_by.report(2, running=0, waiting=0)
    assert seen_by.seen is not None
    assert seen_by.seen.busy_at == 0
    seen_by.report(400, running=0, waiting=0)  # who knows what happened in between
    assert (seen_by.seen.busy_at, seen_by.seen.since) == (400, 400)
    assert decide(1, seen_by.seen, LIMITS, 400).replicas == 1


def test_a_request_between_two_reports_is_not_overlooked():
    seen_by = window()
    seen_by.report(0, running=0, waiting=0)
    seen_by.report(4, running=0, waiting=0, last_request_at=3.5)
    assert seen_by.seen is not None
    assert seen_by.seen.busy_at == 3.5
    seen_by.report(8, running=0, waiting=0, last_request_at=3.5)
    assert seen_by.seen.busy_at == 3.5


@given(st.lists(st.tuples(st.floats(0.1, 4.0), st.integers(0, 50)), min_size=1, max_size=60))
def test_the_windows_peak_is_the_true_maximum(steps):
    seen_by = window()
    at = 0.0
    history = []
    for pause, demand in steps:
        at += pause
        history.append((at, demand))
        seen_by.report(at, running=demand, waiting=0)
        assert seen_by.seen is not None
        assert seen_by.seen.peak == max(d for t, d in history if t >= at - 60)
