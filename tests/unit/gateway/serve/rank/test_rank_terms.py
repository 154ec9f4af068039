import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.types import Load, Replica, ReplicaId
from gateway.serve.catalog import Live, Pool
from gateway.serve.rank.cold_start import cold_start
from gateway.serve.rank.decode import decode
from gateway.serve.rank.prefill import prefill
from gateway.serve.rank.shortfall import shortfall
from gateway.serve.rank.wait import wait

ONE = Replica(ReplicaId("a"), "", "m", slots=4)
POOL = Pool(
    "p",
    replicas=(ONE, Replica(ReplicaId("b"), "", "m", slots=4)),
    prefill_rate=1000.0,
    decode_rate=50.0,
    price=2.0,
    cold_start=6.0,
)
amounts = st.floats(0, 1e6)
shares = st.floats(0, 1)


def live(inflight=0, waiting=0, load=None) -> Live:
    state = Live()
    if inflight:
        state.inflight[ONE.id] = inflight
    if waiting:
        state.waiting["p"] = waiting
    if load:
        state.loads[ONE.id] = load
    return state


def test_prefill_is_priced_seconds_of_what_is_not_cached():
    assert prefill(POOL, 3000, 1000) == 2.0 * 2000 / 1000
    assert prefill(POOL, 1000, 5000) == 0


@given(amounts, amounts, amounts)
def test_more_cached_never_costs_more_and_more_tokens_never_less(tokens, cached, more):
    assert (
        0
        <= prefill(POOL, tokens, cached + more)
        <= prefill(POOL, tokens, cached)
        <= prefill(POOL, tokens + more, cached)
    )
    assert prefill(POOL, tokens, -cached) == prefill(POOL, tokens, 0)


def test_decode_is_priced_seconds():
    assert decode(POOL, 100) == 2.0 * 100 / 50


@given(amounts, amounts)
def test_a_longer_answer_costs_more(tokens, more):
    assert 0 <= decode(POOL, tokens) <= decode(POOL, tokens + more)


def test_cold_start_and_those_who_wait_for_it():
    assert cold_start(POOL, 0, 100) == 6.0
    assert cold_start(POOL, 3, 100) == 6.0 + 3 * 2.0


@given(st.integers(0, 1000), st.integers(0, 1000), amounts)
def test_more_waiting_costs_more(waiting, more, tokens):
    assert POOL.cold_start <= cold_start(POOL, waiting, tokens) <= cold_start(POOL, waiting + more, tokens)


@pytest.mark.parametrize(
    ("acceptable", "loss", "expected"),
    [(1.0, 0.0, 0.0), (0.0, 0.0, 20.0), (0.75, 0.0, 5.0), (1.0, 0.25, 5.0), (0.5, 0.5, 15.0)],
)
def test_shortfall_is_what_a_bad_answer_costs(acceptable, loss, expected):
    assert shortfall(20.0, acceptable, loss) == expected


@given(amounts, shares, shares, shares)
def test_a_better_chance_never_costs_more_and_a_harmful_form_never_less(worth, low, high, loss):
    low, high = sorted((low, high))
    assert 0 <= shortfall(worth, high, loss) <= shortfall(worth, low, loss) <= worth
    assert shortfall(worth, high, 0) <= shortfall(worth, high, loss)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (live(), 0.0),
        (live(inflight=4), 4 / 4 * 2.0),
        (live(waiting=4), 2 / 4 * 2.0),
        (live(inflight=2, waiting=4), 4 / 4 * 2.0),
        (live(inflight=2, load=Load(running=1)), 2 / 4 * 2.0),
        (live(inflight=2, load=Load(running=4, waiting=2)), 6 / 4 * 2.0),
    ],
)
def test_wait_is_the_answers_before_this_one(state, expected):
    assert wait(POOL, ONE, state, 100) == pytest.approx(expected)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_more_in_flight_waiting_or_reported_never_waits_less(inflight, waiting, running, more):
    before = wait(POOL, ONE, live(inflight, waiting, Load(running)), 100)
    assert before >= 0
    assert wait(POOL, ONE, live(inflight + more, waiting, Load(running)), 100) >= before
    assert wait(POOL, ONE, live(inflight, waiting + more, Load(running)), 100) > before
    assert wait(POOL, ONE, live(inflight, waiting, Load(running + more)), 100) >= before


def test_a_pool_without_replicas_divides_by_nothing():
    assert wait(Pool("p"), ONE, live(waiting=3), 100) > 0
