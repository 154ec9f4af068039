from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engines.sim.cache import Cleared, PagedCache, Removed, Stored, chain


def tokens(*values):
    return array("I", values)


def run(cache, prompt, room=None):
    """Open, compute everything, close: one sequence from beginning to end."""
    held = cache.open(prompt, room or len(prompt))
    assert held is not None
    cache.fill(held, prompt, len(prompt))
    hit = held.hit
    cache.close(held)
    return hit


def test_the_second_prompt_with_the_same_head_hits_its_whole_blocks():
    cache = PagedCache(16, 4)
    assert run(cache, tokens(*range(10))) == 0
    assert run(cache, tokens(*range(10))) == 8
    assert run(cache, tokens(*range(8), 99, 98)) == 8
    assert run(cache, tokens(*range(4), 99, 98, 97, 96, 95)) == 4
    assert run(cache, tokens(99, *range(1, 10))) == 0


def test_the_last_token_is_always_computed():
    cache = PagedCache(16, 4)
    run(cache, tokens(*range(8)))
    assert cache.look(tokens(*range(8))) == 4
    assert cache.look(tokens(*range(8), 8)) == 8


def test_a_block_is_found_only_behind_its_own_head():
    cache = PagedCache(16, 2)
    run(cache, tokens(1, 2, 7, 8, 0))
    assert cache.look(tokens(3, 4, 7, 8, 0)) == 0


def test_running_sequences_share_blocks():
    cache = PagedCache(4, 4)
    first = cache.open(tokens(*range(9)), 9)
    cache.fill(first, tokens(*range(9)), 9)
    second = cache.open(tokens(*range(9)), 9)
    assert (first.hit, second.hit) == (0, 8)
    assert cache.held == 4  # two shared, and a tail for each
    cache.close(first)
    assert cache.held == 3
    cache.close(second)
    assert (cache.held, cache.kept) == (0, 2)


def test_what_does_not_fit_changes_nothing():
    cache = PagedCache(3, 4)
    held = cache.open(tokens(*range(8)), 8)
    assert cache.open(tokens(*range(50, 58)), 8) is None
    assert cache.held == 2
    assert cache.grow(held, 12)
    assert not cache.grow(held, 13)
    assert cache.held == 3
    assert cache.used == 1.0


def test_the_oldest_tail_goes_first():
    gone = []
    cache = PagedCache(4, 2, lambda event: gone.append(event) if isinstance(event, Removed) else None)
    old, new = tokens(1, 2, 3, 4, 5), tokens(6, 7, 8)
    run(cache, old)
    run(cache, new)
    assert not gone
    run(cache, tokens(9, 10, 11))
    assert gone == [Removed((chain(old, 2, stop=2)[1],))]  # the second block of the older prompt
    assert cache.look(old) == 2
    assert cache.look(new) == 2


def test_use_makes_young():
    cache = PagedCache(3, 2)
    run(cache, tokens(1, 2, 0))
    run(cache, tokens(3, 4, 0))
    run(cache, tokens(1, 2, 9))  # found, so it is younger than 3, 4 now
    run(cache, tokens(5, 6, 7, 8))
    assert cache.look(tokens(1, 2, 0)) == 2
    assert cache.look(tokens(3, 4, 0)) == 0


def test_events_carry_parents_and_tokens():
    told = []
    cache = PagedCache(8, 2, told.append)
    prompt = tokens(1, 2, 3, 4, 5, 6)
    held = cache.open(prompt, 6)
    cache.fill(held, prompt, 4)
    cache.fill(held, prompt, 5)
    cache.fill(held, prompt, 6)
    first, second, third = chain(prompt, 2, stop=3)
    assert told == [Stored((first, second), None, (1, 2, 3, 4)), Stored((third,), second, (5, 6))]


def test_the_same_block_computed_twice_at_the_same_time_is_told_once():
    told = []
    cache = PagedCache(8, 2, told.append)
    prompt = tokens(1, 2, 3, 4, 5)
    one, two = cache.open(prompt, 5), cache.open(prompt, 5)
    cache.fill(one, prompt, 2)
    cache.fill(two, prompt, 4)  # its first block is known already, its second is new
    cache.fill(one, prompt, 4)
    first, second = chain(prompt, 2, stop=2)
    assert told == [Stored((first,), None, (1, 2)), Stored((second,), first, (3, 4))]
    cache.close(one)
    cache.close(two)
    assert (cache.held, cache.kept) == (0, 2)


def test_clearing_waits_for_the_running():
    told = []
    cache = PagedCache(8, 2, told.append)
    held = cache.open(tokens(1, 2, 3), 3)
    assert not cache.clear()
    cache.fill(held, tokens(1, 2, 3), 3)
    cache.close(held)
    assert cache.clear()
    assert told[-1] == Cleared()
    assert cache.look(tokens(1, 2, 3)) == 0


@pytest.mark.parametrize(("capacity", "size"), [(0, 4), (4, 0)])
def test_a_cache_without_room_is_refused(capacity, size):
    with pytest.raises(ValueError, match="at least one block"):
        PagedCache(capacity, size)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 40), st.integers(1, 5))
def test_a_hit_is_whole_blocks_of_the_common_head(prompt, cut, size):
    cache = PagedCache(64, size)
    other = [*prompt[:cut], 9, 9]
    run(cache, array("I", prompt))
    hit = cache.look(array("I", other))
    common = min(cut, len(prompt))
    assert hit == min(common, len(other) - 1) // size * size


def test_hashes_do_not_depend_on_where_the_computing_stopped():
    prompt = tokens(*range(12))
    whole = chain(prompt, 3, stop=4)
    assert chain(prompt, 3, start=2, parent=whole[1], stop=4) == whole[2:]


class Life(RuleBasedStateMachine):
    """Any order of opening, growing, computing and closing keeps the books right."""

    def __init__(self):
        super().__init__()
        self.known = set()
        self.cache = PagedCache(7, 2, self._hear)
        self.open = []

    def _hear(self, event):
        match event:
            case Stored(hashes, parent, spelled):
                assert parent is None or parent in self.known or parent not in hashes
                assert not self.known & set(hashes)
                assert len(spelled) == 2 * len(hashes)
                self.known |= set(hashes)
            case Removed(hashes):
                assert set(hashes) <= self.known
                self.known -= set(hashes)
            case Cleared():
                self.known.clear()

    @rule(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12), extra=st.integers(0, 4))
    def begin(self, prompt, extra):
        prompt = array("I", prompt)
        seen = self.cache.look(prompt)
        before = self.cache.held
        held = self.cache.open(prompt, len(prompt) + extra)
        if held is None:
            assert self.cache.held == before
            return
        assert held.hit == seen < len(prompt)
        assert len(held.blocks) == -(-(len(prompt) + extra) // 2)
        self.open.append((held, prompt))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 100), more=st.integers(1, 5))
    def grow(self, which, more):
        held, prompt = self.open[which % len(self.open)]
        before = len(held.blocks)
        fits = self.cache.grow(held, len(prompt) + more)
        assert len(held.blocks) == (max(before, -(-(len(prompt) + more) // 2)) if fits else before)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 100), share=st.floats(0, 1))
    def compute(self, which, share):
        held, prompt = self.open[which % len(self.open)]
        self.cache.fill(held, prompt, max(held.hit, int(share * len(prompt))))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 100))
    def end(self, which):
        held, _ = self.open.pop(which % len(self.open))
        self.cache.close(held)

    @rule()
    def clear(self):
        assert self.cache.clear() == (not self.open)

    @invariant()
    def never_more_than_its_capacity(self):
        assert self.cache.held + self.cache.kept <= self.cache.capacity

    @invariant()
    def counts_every_block_once(self):
        assert self.cache.held == len({id(block) for held, _ in self.open for block in held.blocks})

    @invariant()
    def references_are_holders(self):
        holders = {}
        for held, _ in self.open:
            for block in held.blocks:
                holders[id(block)] = (block, holders.get(id(block), (block, 0))[1] + 1)
        assert all(block.references == count for block, count in holders.values())

    @invariant()
    def what_was_told_is_what_can_be_found(self):
        assert self.known == set(self.cache._known)


Life.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestLife = Life.TestCase
