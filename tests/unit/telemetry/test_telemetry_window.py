"""The rolling windows, against the same thing counted slowly; and the accuracy of their quantiles."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import window as module
from telemetry.window import BINS, GROWTH, POOLS, SMALLEST, Window, bin_of, quantile
from tests.support.telemetry import a_record

NOW = 1_700_000_000.0
WITHIN = math.sqrt(GROWTH) * (1 + 1e-6)


def bins(times):
    counts = np.zeros(BINS)
    for seconds in times:
        counts[bin_of(seconds)] += 1
    return counts


@given(st.lists(st.floats(0.0002, 800.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_a_quantile_is_within_half_a_bin_of_the_exact_one(times, share):
    exact = sorted(times)[max(0, math.ceil(share * len(times)) - 1)]
    told = quantile(bins(times), share)
    assert exact / WITHIN <= told <= exact * WITHIN


def test_no_values_no_quantile():
    assert quantile(np.zeros(BINS), 0.5) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, SMALLEST, 1e9, math.inf, math.nan])
def test_no_time_falls_out_of_the_bins(seconds):
    assert 0 <= bin_of(seconds) < BINS


@given(st.floats(SMALLEST, 800.0), st.floats(SMALLEST, 800.0))
def test_a_longer_time_is_never_in_an_earlier_bin(one, other):
    assert (bin_of(one) <= bin_of(other)) or one > other


def test_one_minute_told_in_rates():
    window = Window(NOW - 1000)
    for second in range(60):
        window.request(a_record(completion_tokens=30, prompt_tokens=100, prefix_hit=0.5), NOW - second)
    minute = window.snapshot(NOW + 0.999).minute
    small = minute.pools["small"]
    assert minute.system == small
    assert small.count == 60
    assert small.requests == pytest.approx(1.0, rel=0.01)
    assert small.output_tokens == pytest.approx(30.0, rel=0.01)
    assert small.ttft_p50 == pytest.approx(0.05, rel=0.07)
    assert small.tpot_p95 == pytest.approx(0.02, rel=0.07)
    assert small.user_tokens == pytest.approx(50.0, rel=0.07)
    assert small.prefix_hit == pytest.approx(0.5)
    assert small.errors == 0.0
    assert small.tokens_removed == pytest.approx(100 * 100 / 300, rel=0.01)


def test_pools_are_apart_and_the_system_is_all_of_them():
    window = Window(NOW - 1000)
    window.request(a_record(pool="small", ttft=0.1), NOW)
    window.request(a_record(pool="large", ttft=2.0, outcome="interrupted"), NOW)
    window.request(a_record(pool="", ttft=None, tpot=None, outcome="error", status=503, completion_tokens=0), NOW)
    minute = window.snapshot(NOW).minute
    assert set(minute.pools) == {"small", "large"}
    assert (minute.system.count, minute.pools["small"].count) == (3, 1)
    assert minute.system.errors == pytest.approx(2 / 3)
    assert minute.pools["large"].errors == 1.0
    assert minute.pools["large"].ttft_p50 == pytest.approx(2.0, rel=0.07)
    assert minute.system.ttft_p50 == pytest.approx(0.1, rel=0.07)


@pytest.mark.parametrize(
    ("outcome", "status", "failed", "refused"),
    [
        ("ok", 200, 0.0, 0.0),
        ("error", 400, 0.0, 1.0),
        ("error", 429, 0.0, 1.0),
        ("error", 499, 0.0, 1.0),
        ("error", 500, 1.0, 0.0),
        ("error", 504, 1.0, 0.0),
        ("interrupted", 200, 1.0, 0.0),
    ],
)
def test_what_a_client_asked_wrongly_is_a_refusal_and_no_failure(outcome, status, failed, refused):
    window = Window(NOW - 1000)
    window.request(a_record(outcome=outcome, status=status), NOW)
    system = window.snapshot(NOW).minute.system
    assert (system.errors, system.refused) == (failed, refused)


def test_a_client_that_left_is_no_error():
    window = Window(NOW - 1000)
    window.request(a_record(outcome="cancelled"), NOW)
    assert window.snapshot(NOW).minute.system.errors == 0.0


def test_the_two_spans_forget_in_their_own_time():
    window = Window(NOW - 1000)
    window.request(a_record(), NOW)

    def counts(at):
        told = window.snapshot(at)
        return told.minute.system.count, told.five_minutes.system.count

    assert counts(NOW) == (1, 1)
    assert counts(NOW + 59) == (1, 1)
    assert counts(NOW + 60) == (0, 1)
    assert counts(NOW + 299) == (0, 1)
    assert counts(NOW + 300) == (0, 0)
    assert counts(NOW + 10_000) == (0, 0)


def test_a_second_that_comes_round_again_starts_from_nothing():
    window = Window(NOW - 1000)
    for _ in range(5):
        window.request(a_record(), NOW)
    window.request(a_record(), NOW + module.SECONDS)
    assert window.snapshot(NOW + module.SECONDS).five_minutes.system.count == 1


def test_a_young_process_tells_rates_of_its_own_time():
    window = Window(NOW)
    for _ in range(20):
        window.request(a_record(), NOW + 5)
    assert window.snapshot(NOW + 10).minute.system.requests == pytest.approx(2.0)
    assert window.snapshot(NOW + 10).five_minutes.system.requests == pytest.approx(2.0)


def test_in_the_first_instant_nothing_is_infinite():
    window = Window(NOW)
    window.request(a_record(), NOW)
    assert window.snapshot(NOW).minute.system.requests == 1.0


def test_nothing_seen_tells_zero_rates_and_no_latencies():
    system = Window(NOW).snapshot(NOW).minute.system
    assert (system.requests, system.count, system.output_tokens) == (0.0, 0, 0.0)
    assert system.ttft_p50 is system.tpot_p95 is system.user_tokens is system.errors is system.prefix_hit is None


def test_more_pools_than_the_bound_share_one_ring():
    window = Window(NOW - 1000)
    for index in range(POOLS + 20):
        window.request(a_record(pool=f"pool-{index}"), NOW)
    minute = window.snapshot(NOW).minute
    assert minute.system.count == POOLS + 20
    assert len(minute.pools) == POOLS + 1
    assert minute.pools["_other"].count == 20


def test_memory_does_not_grow_with_requests():
    window = Window(NOW)
    window.request(a_record(), NOW)
    ring = window._rings["small"]
    size = len(ring._counts)
    for index in range(2000):
        window.request(a_record(), NOW + index / 2)
    assert len(ring._counts) == size
    assert size * ring._counts.itemsize < 350_000


@given(
    st.lists(
        st.tuples(st.integers(0, 700), st.sampled_from(["small", "large", ""]), st.integers(0, 500), st.booleans()),
        max_size=60,
    )
)
def test_it_agrees_with_counting_slowly(events):
    window = Window(NOW - 1000)
    for offset, pool, tokens, failed in sorted(events):
        window.request(a_record(pool=pool, completion_tokens=tokens, outcome="error" if failed else "ok"), NOW + offset)
    at = NOW + 700
    for seconds, told in ((60, window.snapshot(at).minute), (300, window.snapshot(at).five_minutes)):
        inside = [event for event in events if 700 - event[0] < seconds]
        assert told.system.count == len(inside)
        assert told.system.output_tokens == pytest.approx(sum(event[2] for event in inside) / (seconds - 1))
        for pool in told.pools:
            assert told.pools[pool].count == sum(event[1] == pool for event in inside)
