from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backends.types import Replica, ReplicaId
from gateway.serve.catalog import Live
from gateway.serve.lease import lease

NAME = ReplicaId("a")


def replica(name: str = "a", incarnation: str = "1") -> Replica:
    return Replica(ReplicaId(name), "", "m", incarnation=incarnation)


def test_counted_while_it_lasts_and_gone_after():
    live = Live()
    with lease(live, replica()), lease(live, replica()), lease(live, replica("b")):
        assert live.inflight == {"a": 2, "b": 1}
    assert (live.inflight, live.leases, live.incarnations) == ({}, {}, {})


def test_an_error_gives_it_back():
    live = Live()
    with pytest.raises(RuntimeError), lease(live, replica()):
        raise RuntimeError
    assert live.inflight == {}


def test_whoever_waits_is_told_after_the_count_went_down():
    live, seen = Live(), []
    with lease(live, replica(), lambda: seen.append(dict(live.inflight))):
        assert seen == []
    assert seen == [{}]


def test_a_new_process_starts_at_none_and_the_old_ones_leftovers_do_not_count():
    live = Live()
    with ExitStack() as old:
        for _ in range(3):
            old.enter_context(lease(live, replica(incarnation="1")))
        with lease(live, replica(incarnation="2")):
            assert live.inflight == {"a": 1}
            old.close()
            assert live.inflight == {"a": 1}
    assert live.inflight == {}


def test_the_old_process_may_outlive_the_new_ones_requests():
    live = Live()
    with lease(live, replica(incarnation="1")):
        with lease(live, replica(incarnation="2")):
            pass
        assert live.inflight == {}
        with lease(live, replica(incarnation="2")):
            assert live.inflight == {"a": 1}
    assert (live.inflight, live.leases) == ({}, {})


class Leases(RuleBasedStateMachine):
    """Any order of comings and goings over two incarnations: the count is the truth, or nothing."""

    def __init__(self):
        super().__init__()
        self.live = Live()
        self.open: list[tuple[str, ExitStack]] = []
        self.newest = ""

    @rule(incarnation=st.sampled_from("12"))
    def take(self, incarnation):
        held = ExitStack()
        held.enter_context(lease(self.live, replica(incarnation=incarnation)))
        self.open.append((incarnation, held))
        self.newest = incarnation

    @rule(which=st.integers(0, 50))
    def give_back(self, which):
        if self.open:
            self.open.pop(which % len(self.open))[1].close()

    @invariant()
    def the_count_is_the_newest_incarnations(self):
        running = sum(incarnation == self.newest for incarnation, _ in self.open)
        assert self.live.inflight.get(NAME, 0) == running
        assert all(count > 0 for count in self.live.leases.values())
        assert sum(self.live.leases.values()) == len(self.open)

    def teardown(self):
        for _, held in self.open:
            held.close()
        assert (self.live.inflight, self.live.leases, self.live.incarnations) == ({}, {}, {})


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=20))
def test_replicas_are_counted_apart(names):
    live = Live()
    with ExitStack() as held:
        for name in names:
            held.enter_context(lease(live, replica(name)))
        assert live.inflight == {name: names.count(name) for name in set(names)}
    assert live.inflight == {}
