from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serve.admit import GRAIN, MINUTE, Admission, Window
from gateway.serve.catalog import Caller
from gateway.serve.errors import RateLimited


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def admission(clock):
    return Admission(clock)


def use(admission, caller, tokens=0, took=None):
    with admission.admit(caller, tokens) as admitted:
        admitted.settle(tokens if took is None else took)


def refused(admission, caller, tokens=0) -> RateLimited:
    with pytest.raises(RateLimited) as caught, admission.admit(caller, tokens):
        pass
    return caught.value


def test_a_key_without_limits_is_never_refused_and_not_counted(admission):
    with ExitStack() as held:
        for _ in range(1000):
            held.enter_context(admission.admit(Caller("a"), 10**9))
    assert admission.accounts == 0


def test_so_many_at_once_and_no_more(admission):
    caller = Caller("a", concurrency=2)
    with admission.admit(caller, 0):
        with admission.admit(caller, 0):
            error = refused(admission, caller)
            assert (error.status, error.code) == (429, "rate_limit_exceeded")
            assert error.retry_after == 1.0
        with admission.admit(caller, 0):
            pass


def test_keys_do_not_share(admission):
    with admission.admit(Caller("a", concurrency=1), 0), admission.admit(Caller("b", concurrency=1), 0):
        refused(admission, Caller("a", concurrency=1))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_any_exit_gives_the_place_back(admission, error):
    caller = Caller("a", concurrency=1, tokens_per_minute=100)
    with pytest.raises(error), admission.admit(caller, 100):
        raise error
    with admission.admit(caller, 100):
        pass


def test_requests_a_minute(admission, clock):
    caller = Caller("a", requests_per_minute=3)
    for _ in range(3):
        use(admission, caller)
        clock.now += 1
    error = refused(admission, caller)
    assert error.retry_after == pytest.approx(MINUTE - 3, abs=2 * GRAIN)
    clock.now += error.retry_after - 2 * GRAIN
    refused(admission, caller)
    clock.now += 2 * GRAIN + 1e-6
    use(admission, caller)
    refused(admission, caller)


def test_requests_that_share_an_entry_expire_with_the_last_of_them(admission, clock):
    caller = Caller("a", requests_per_minute=2)
    clock.now += GRAIN * 0.2
    use(admission, caller)
    clock.now += GRAIN * 0.6
    use(admission, caller)
    clock.now += MINUTE - GRAIN * 0.3  # a minute after the first, not after the second
    refused(admission, caller)
    clock.now += GRAIN
    use(admission, caller)


def test_a_refused_request_does_not_count(admission, clock):
    caller = Caller("a", requests_per_minute=1)
    use(admission, caller)
    for _ in range(100):
        clock.now += 0.5
        refused(admission, caller)
    clock.now += MINUTE - 50 + GRAIN + 1e-6
    use(admission, caller)


def test_tokens_are_reserved_while_a_request_runs(admission):
    caller = Caller("a", tokens_per_minute=100)
    with admission.admit(caller, 60):
        error = refused(admission, caller, 60)
        assert error.retry_after == 1.0  # when the running one ends, and nobody knows when
        assert "60 reserved" in str(error)
        with admission.admit(caller, 40):
            refused(admission, caller, 1)


def test_fifty_at_once_with_room_for_one(admission):
    caller = Caller("a", tokens_per_minute=100)
    passed = 0
    with ExitStack() as held:
        for _ in range(50):
            try:
                held.enter_context(admission.admit(caller, 80))
                passed += 1
            except RateLimited:
                pass
    assert passed == 1


def test_what_a_request_took_replaces_what_was_reserved(admission, clock):
    caller = Caller("a", tokens_per_minute=100)
    use(admission, caller, tokens=90, took=10)
    use(admission, caller, tokens=90, took=30)
    error = refused(admission, caller, 61)
    assert error.retry_after == pytest.approx(MINUTE, abs=2 * GRAIN)
    use(admission, caller, tokens=60)
    clock.now += MINUTE + 2 * GRAIN
    use(admission, caller, tokens=100)


def test_a_request_that_took_more_than_reserved_is_charged_in_full(admission):
    caller = Caller("a", tokens_per_minute=100)
    use(admission, caller, tokens=10, took=500)
    assert refused(admission, caller, 1).retry_after == pytest.approx(MINUTE, abs=2 * GRAIN)


def test_a_request_that_nobody_settles_took_nothing(admission):
    caller = Caller("a", tokens_per_minute=100)
    for _ in range(5):
        with admission.admit(caller, 100):
            pass


def test_the_last_settlement_counts_and_is_never_below_none(admission):
    caller = Caller("a", tokens_per_minute=100)
    with admission.admit(caller, 10) as admitted:
        admitted.settle(80)
        admitted.settle(50)
    with admission.admit(caller, 10) as admitted:
        admitted.settle(-1000)
    use(admission, caller, tokens=50)
    refused(admission, caller, 1)


def test_a_request_larger_than_the_limit_is_told_so_and_not_told_to_wait(admission):
    error = refused(admission, Caller("a", tokens_per_minute=100), 101)
    assert error.retry_after is None
    assert "101" in str(error)


def test_requests_and_tokens_have_windows_of_their_own(admission, clock):
    caller = Caller("a", requests_per_minute=2, tokens_per_minute=100)
    use(admission, caller, tokens=100)
    clock.now += 30
    refused(admission, caller, 1)
    clock.now += 31
    use(admission, caller, tokens=1)
    use(admission, caller, tokens=1)
    refused(admission, caller, 1)


def test_a_limit_of_none_at_all_refuses_everything(admission):
    for caller in (Caller("a", concurrency=0), Caller("b", requests_per_minute=0), Caller("c", tokens_per_minute=0)):
        refused(admission, caller, 1)


def test_new_limits_count_at_once(admission):
    use(admission, Caller("a", requests_per_minute=5))
    refused(admission, Caller("a", requests_per_minute=1))
    use(admission, Caller("a", requests_per_minute=2))


def test_keys_that_fell_silent_are_forgotten(admission, clock):
    for number in range(1000):
        use(admission, Caller(f"k{number}", requests_per_minute=5))
    assert admission.accounts == 1000
    clock.now += MINUTE + 1
    for _ in range(600):
        use(admission, Caller("busy", requests_per_minute=10**6))
    assert admission.accounts == 1


def test_neither_a_busy_key_nor_a_long_request_keeps_the_silent_ones(admission, clock):
    with admission.admit(Caller("long", concurrency=1), 0), admission.admit(Caller("longer", concurrency=1), 0):
        busy = [Caller(name, requests_per_minute=10**6) for name in ("busy", "busier", "busiest")]
        for one in busy:
            use(admission, one)
        for number in range(100):
            use(admission, Caller(f"k{number}", requests_per_minute=5))
        for _ in range(200):
            clock.now += MINUTE / 20
            for one in busy:
                use(admission, one)
        assert admission.accounts == 5


def test_a_key_with_a_request_under_way_is_not_forgotten(admission, clock):
    caller = Caller("a", concurrency=1)
    with admission.admit(caller, 0):
        clock.now += 10 * MINUTE
        for _ in range(20):
            use(admission, Caller("busy", requests_per_minute=10**6))
        refused(admission, caller)
    clock.now += 2 * MINUTE
    for _ in range(20):
        use(admission, Caller("busy", requests_per_minute=10**6))
    assert admission.accounts == 1


steps = st.lists(
    st.tuples(st.floats(0, 20), st.integers(0, 60), st.integers(0, 60), st.booleans()), min_size=1, max_size=60
)


@given(steps, st.integers(1, 6), st.integers(1, 100), st.integers(1, 4))
def test_no_minute_ever_holds_more_than_the_limits(script, requests, tokens, at_once):
    """Whatever comes when: in any 60 seconds, requests admitted and tokens settled or reserved stay within."""
    clock = Clock()
    admission = Admission(clock)
    caller = Caller("a", concurrency=at_once, requests_per_minute=requests, tokens_per_minute=tokens)
    admitted_at: list[float] = []
    settled: list[tuple[float, int]] = []
    running: list[tuple[ExitStack, int]] = []
    for gap, estimate, took, keep in script:
        clock.now += gap
        held = ExitStack()
        refusal: RateLimited | None = None
        try:
            admitted = held.enter_context(admission.admit(caller, estimate))
        except RateLimited as error:
            refusal = error
        if refusal is not None:
            never = estimate > tokens and len(running) < at_once and _room(admitted_at, clock.now, requests)
            assert (refusal.retry_after is None) == never
            assert never or 0 < refusal.retry_after <= MINUTE + GRAIN
            if running and not keep:
                end(running, settled, clock.now)
            continue
        admitted.settle(min(took, estimate))
        held_tokens = min(took, estimate)
        running.append((held, held_tokens))
        admitted_at.append(clock.now)
        assert len(running) <= at_once
        assert sum(clock.now - when < MINUTE for when in admitted_at) <= requests
        used = sum(amount for when, amount in settled if clock.now - when < MINUTE)
        assert used + sum(amount for _, amount in running) <= tokens
        if not keep:
            end(running, settled, clock.now)
    while running:
        end(running, settled, clock.now)


def _room(admitted_at, now, requests):
    """Whether the request window has room; entries may count for one grain longer than a minute."""
    return sum(now - when < MINUTE + GRAIN for when in admitted_at) < requests


def end(running, settled, now):
    held, amount = running.pop(0)
    held.close()
    settled.append((now, amount))


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50)), min_size=1, max_size=40), st.integers(1, 500))
def test_a_window_knows_when_it_will_have_room(script, excess):
    window, now = Window(), 0.0
    for gap, amount in script:
        now += gap
        window.expire(now)
        window.add(amount, now)
    before = window.total
    wait = window.wait(excess, now)
    window.expire(now + wait - GRAIN / 2)
    if excess <= before:
        assert before - window.total < excess
        window.expire(now + wait + 1e-6)
        assert before - window.total >= excess
    window.expire(now + MINUTE + 2 * GRAIN)
    assert window.total == 0


def test_a_window_stays_small():
    window = Window()
    for step in range(200_000):
        now = step * 0.002
        window.expire(now)
        window.add(1, now)
    assert len(window._entries) <= 602
    assert window.total == pytest.approx(MINUTE / 0.002, rel=0.01)
