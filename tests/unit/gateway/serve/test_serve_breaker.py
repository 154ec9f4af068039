import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.types import Replica, ReplicaId
from gateway.serve.breaker import FAILURES, FIRST_BACKOFF, LONGEST_BACKOFF, Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


A = Replica(ReplicaId("a"), "", "m", incarnation="1")
B = Replica(ReplicaId("b"), "", "m", incarnation="1")
A2 = Replica(ReplicaId("a"), "", "m", incarnation="2")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return Breaker(clock, set())


def trip(breaker, replica=A):
    for _ in range(FAILURES):
        breaker.failed(replica)


def test_two_failures_are_forgiven(breaker):
    for _ in range(10):
        breaker.failed(A)
        breaker.failed(A)
        breaker.worked(A)
    assert breaker.blocked() == set()


def test_three_in_a_row_hold_it_back_and_nobody_else(breaker):
    breaker.failed(B)
    trip(breaker)
    assert breaker.blocked() == {"a"}


def test_the_set_is_the_one_that_was_given(clock):
    held_back = set()
    breaker = Breaker(clock, held_back)
    trip(breaker)
    assert held_back == {"a"}
    assert breaker.blocked() is held_back


def test_one_request_may_try_when_the_back_off_is_over(breaker, clock):
    trip(breaker)
    clock.now = FIRST_BACKOFF - 0.01
    assert breaker.blocked() == {"a"}
    clock.now = FIRST_BACKOFF
    assert breaker.blocked() == set()
    with breaker.attempt(A):
        assert breaker.blocked() == {"a"}
        breaker.worked(A)
        assert breaker.blocked() == set()
    assert breaker.next_change() is None


def test_a_test_that_fails_doubles_the_back_off_up_to_its_limit(breaker, clock):
    trip(breaker)
    seen = []
    for _ in range(8):
        wait = breaker.next_change() - clock.now
        seen.append(wait)
        clock.now += wait
        assert breaker.blocked() == set()
        with breaker.attempt(A):
            breaker.failed(A)
        assert breaker.blocked() == {"a"}
    assert seen == [1, 2, 4, 8, 16, LONGEST_BACKOFF, LONGEST_BACKOFF, LONGEST_BACKOFF]


def test_a_test_without_a_verdict_is_left_to_the_next(breaker, clock):
    trip(breaker)
    clock.now = 5
    breaker.blocked()
    with pytest.raises(GeneratorExit), breaker.attempt(A):
        raise GeneratorExit
    assert breaker.blocked() == set()
    with breaker.attempt(A):
        assert breaker.blocked() == {"a"}
        breaker.failed(A)
    assert breaker.next_change() == 5 + 2 * FIRST_BACKOFF


def test_it_starts_again_from_the_shortest_back_off_once_it_worked(breaker, clock):
    for _ in range(3):
        trip(breaker)
        clock.now = breaker.next_change()
        with breaker.attempt(A):
            breaker.failed(A)
        clock.now = breaker.next_change()
        breaker.worked(A)
    trip(breaker)
    assert breaker.next_change() == clock.now + FIRST_BACKOFF


def test_requests_that_were_under_way_do_not_lengthen_it(breaker, clock):
    trip(breaker)
    for _ in range(50):
        breaker.failed(A)
    assert breaker.next_change() == FIRST_BACKOFF


def test_one_that_was_under_way_and_works_is_proof_enough(breaker):
    trip(breaker)
    breaker.worked(A)
    assert breaker.blocked() == set()


def test_a_new_process_behind_the_id_starts_clean(breaker):
    trip(breaker)
    breaker.keep([A2, B])
    assert breaker.blocked() == set()
    breaker.failed(A2)
    breaker.failed(A2)
    assert breaker.blocked() == set()


def test_what_the_old_process_did_is_no_fault_of_the_new_one(breaker):
    breaker.keep([A2, B])
    trip(breaker, A)
    assert breaker.blocked() == set()
    trip(breaker, A2)
    breaker.worked(A)
    assert breaker.blocked() == {"a"}


def test_without_a_catalog_the_latest_incarnation_counts(breaker):
    trip(breaker, A)
    breaker.failed(A2)
    assert breaker.blocked() == set()


def test_a_replica_that_is_gone_is_forgotten(breaker):
    trip(breaker)
    trip(breaker, B)
    breaker.keep([B])
    assert breaker.blocked() == {"b"}


def test_the_catalog_of_the_same_replicas_changes_nothing(breaker):
    trip(breaker)
    breaker.keep([A, B])
    assert breaker.blocked() == {"a"}


def test_a_healthy_replica_leaves_no_trace(breaker):
    with breaker.attempt(A):
        breaker.worked(A)
    assert (breaker.blocked(), breaker.next_change()) == (set(), None)


events = st.lists(
    st.tuples(
        st.sampled_from(["failed", "worked", "wait", "begin", "end", "swap"]),
        st.sampled_from([A, B, A2]),
        st.floats(0, 40),
    ),
    max_size=60,
)


@given(events)
def test_whatever_happens_nobody_is_held_back_for_ever(script):
    clock = Clock()
    breaker = Breaker(clock, set())
    open_attempts = []
    for what, replica, gap in script:
        match what:
            case "failed":
                breaker.failed(replica)
            case "worked":
                breaker.worked(replica)
            case "wait":
                clock.now += gap
            case "begin":
                attempt = breaker.attempt(replica)
                attempt.__enter__()
                open_attempts.append(attempt)
            case "end":
                if open_attempts:
                    open_attempts.pop(0).__exit__(None, None, None)
            case "swap":
                breaker.keep([replica])
                assert breaker.blocked() <= {replica.id}
        change = breaker.next_change()
        assert change is None or change - clock.now <= LONGEST_BACKOFF
    for attempt in open_attempts:
        attempt.__exit__(None, None, None)
    clock.now += LONGEST_BACKOFF
    assert breaker.blocked() == set()
