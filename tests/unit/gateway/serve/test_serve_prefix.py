import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from backends.types import Replica, ReplicaId
from gateway.serve.prefix import FLOOR, JUDGED, STRIKES, PrefixIndex


def replica(name: str, incarnation: str = "1") -> Replica:
    return Replica(ReplicaId(name), "", "m", incarnation=incarnation)


A, B, C = replica("a"), replica("b"), replica("c")
texts = st.binary(max_size=3000) | st.integers(0, 100_000).map(lambda size: random.Random(size).randbytes(size))


def test_blocks_are_small_at_the_start_and_larger_deep_inside():
    index = PrefixIndex()
    assert [index.size(count) for count in (0, 1, 2, 64, 65, 176, 177)] == [0, 128, 256, 8192, 8704, 65536, 67584]
    assert len(index.chain(b"", bytes(32_768))) == 112
    assert len(index.chain(b"", bytes(500_000))) == 388


@pytest.mark.parametrize(("size", "blocks"), [(0, 0), (127, 0), (128, 1), (255, 1), (8192, 64), (8703, 64), (8704, 65)])
def test_only_whole_blocks_count(size, blocks):
    assert len(PrefixIndex().chain(b"", bytes(size))) == blocks


def test_each_hash_is_over_its_block_and_all_before_it():
    first = xxh3_64_intdigest(b"x" * 128, xxh3_64_intdigest(b"seed"))
    second = xxh3_64_intdigest(b"y" * 128, first)
    assert PrefixIndex().chain("seed", b"x" * 128 + b"y" * 128 + b"tail") == (first, second)


@given(texts, texts, texts, st.sampled_from([16, 100, 128, 1000]))
def test_two_prompts_share_the_hashes_of_their_common_whole_blocks(common, one, other, block):
    index = PrefixIndex(block)
    first, second = index.chain(b"m", common + b"1" + one), index.chain(b"m", common + b"2" + other)
    shared = next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    assert index.size(shared) <= len(common)
    assert len(common) < index.size(shared + 1)


@given(texts, st.sampled_from([1, 16, 100, 128, 1000, 70_000]))
def test_the_size_of_a_chain_is_that_of_its_whole_blocks(text, block):
    index = PrefixIndex(block)
    count = len(index.chain(b"", text))
    assert index.size(count) <= len(text) < index.size(count + 1)


def test_what_engines_keep_apart_is_kept_apart():
    index, text = PrefixIndex(), bytes(1000)
    index.record(A, index.chain(b"model", text))
    assert index.hits([A], index.chain(b"model", text)) == {"a": 896}
    assert index.hits([A], index.chain(b"adapter", text)) == {}
    assert index.chain("model", text) == index.chain(b"model", text)


def test_each_replica_is_found_with_the_run_it_holds_from_the_start():
    index = PrefixIndex()
    text = random.Random(1).randbytes(20_000)
    index.record(A, index.chain(b"", text))
    index.record(B, index.chain(b"", text[:5000] + b"another end" * 500))
    hits = index.hits([A, B, C], index.chain(b"", text))
    assert hits == {"a": index.size(len(index.chain(b"", text))), "b": 4992}
    assert index.hits([C], index.chain(b"", text)) == {}
    assert index.hits([A], index.chain(b"", b"other" + text)) == {}
    assert index.hits([A], ()) == {}


def test_a_new_process_behind_an_id_holds_nothing():
    index, chain = PrefixIndex(), PrefixIndex().chain(b"", bytes(1000))
    index.record(A, chain)
    again = replica("a", "2")
    assert index.hits([again], chain) == {}
    index.record(again, chain[:2])
    assert index.hits([again], chain) == {"a": 256}
    assert index.hits([A], chain) == {}


def test_a_replica_that_is_gone_is_forgotten():
    index, chain = PrefixIndex(), PrefixIndex().chain(b"", bytes(1000))
    for one in (A, B, C):
        index.record(one, chain)
    index.forget(ReplicaId("a"))
    index.forget(ReplicaId("never seen"))
    assert set(index.hits([A, B, C], chain)) == {"b", "c"}
    index.keep([B, replica("c", "2")])
    assert set(index.hits([A, B, C], chain)) == {"b"}
    assert index.stats().replicas == 1


def test_blocks_are_bounded_and_the_least_recently_used_go_first():
    index = PrefixIndex(blocks_per_replica=100)
    chains = [index.chain(str(number), bytes(128 * 30)) for number in range(5)]
    for chain in chains[:3]:
        index.record(A, chain)
    index.record(A, chains[0])
    index.record(A, chains[3])
    assert index.stats().blocks == 100
    assert index.hits([A], chains[0]) == {"a": 3840}
    assert index.hits([A], chains[3]) == {"a": 3840}
    assert index.hits([A], chains[2]) == {"a": 3840}
    assert index.hits([A], chains[1]) == {"a": 128 * 10}  # its end went, its start is still good


def test_a_prompt_longer_than_the_bound_keeps_its_start():
    index = PrefixIndex(blocks_per_replica=10)
    chain = index.chain(b"", bytes(128 * 30))
    index.record(A, chain)
    assert index.hits([A], chain) == {"a": 1280}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 8)), max_size=40), st.integers(1, 30))
def test_what_is_held_is_always_a_run_from_the_start(script, bound):
    """So that halving finds it: no block outlives the one before it, whatever was recorded and evicted."""
    index = PrefixIndex(blocks_per_replica=bound)
    shared = random.Random(0).randbytes(128 * 12)
    seen: list[tuple[int, ...]] = []
    for ending, common, more in script:
        chain = index.chain(b"", shared[: 128 * common] + bytes([ending]) * (128 * more))
        index.record(A, chain)
        seen.append(chain)
        held = index._held[A.id].blocks
        assert len(held) <= bound
        for one in seen:
            run = next((n for n, block in enumerate(one) if block not in held), len(one))
            assert not any(block in held for block in one[run:])
            assert index.hits([A], one).get(A.id, 0) == 128 * run


@given(st.lists(st.booleans(), max_size=30))
def test_more_recorded_never_means_less_held_within_the_bound(script):
    index, text = PrefixIndex(), bytes(5000)
    chain = index.chain(b"", text)
    best = 0
    for whole in script:
        index.record(A, chain if whole else chain[:5])
        hit = index.hits([A], chain).get(A.id, 0)
        assert hit >= best
        best = hit


def filled(blocks: int = 1000) -> tuple[PrefixIndex, list[tuple[int, ...]]]:
    index = PrefixIndex(blocks_per_replica=blocks)
    chains = [index.chain(str(number), bytes(128 * 10)) for number in range(blocks // 10)]
    for chain in chains:
        index.record(A, chain)
    return index, chains


def test_an_engine_that_forgets_sooner_gets_a_smaller_bound():
    index, chains = filled()
    index.trust(A, expected=3000, reported=0)
    assert index.stats().blocks == 750
    assert index.hits([A], chains[0]) == {}
    assert index.hits([A], chains[-1]) == {"a": 1280}  # what was sent last is surely there now
    index.record(A, index.chain(b"new", bytes(128 * 10)))
    assert index.stats().blocks == 750


def test_the_bound_never_falls_below_its_floor_and_grows_back():
    index, _ = filled()
    for _ in range(30):
        index.trust(A, expected=3000, reported=0)
    assert index.stats().blocks == FLOOR
    for _ in range(60):
        index.trust(A, expected=3000, reported=2900)
    for number in range(200):
        index.record(A, index.chain(f"again {number}", bytes(128 * 10)))
    assert index.stats().blocks == 1000


def test_an_engine_that_never_reports_a_hit_is_not_believed_until_it_does():
    index, chains = filled()
    for _ in range(STRIKES):
        assert index.hits([A], chains[-1])
        index.trust(A, expected=3000, reported=0)
    assert index.hits([A], chains[-1]) == {}
    assert index.stats().disbelieved == 1
    index.trust(A, expected=0, reported=500)
    assert index.hits([A], chains[-1]) == {"a": 1280}
    assert index.stats().disbelieved == 0


@pytest.mark.parametrize(
    ("expected", "reported"),
    [(3000, 1500), (3000, 2999), (3000, 9000), (JUDGED - 1, 0), (0, 0), (0, 5000), (JUDGED, JUDGED / 2)],
)
def test_what_is_near_enough_or_too_small_to_judge_takes_nothing(expected, reported):
    index, _ = filled()
    for _ in range(20):
        index.trust(A, expected=expected, reported=reported)
    assert index.stats().blocks == 1000
    assert index.stats().disbelieved == 0


def test_reports_of_a_process_that_is_gone_do_not_count():
    index, _ = filled()
    for _ in range(20):
        index.trust(replica("a", "2"), expected=3000, reported=0)
        index.trust(B, expected=3000, reported=0)
    assert index.stats().blocks == 1000


def test_the_mode_in_force_is_told_with_its_reason():
    index = PrefixIndex()
    assert (index.mode, index.stats().mode) == ("approximate", "approximate")
    assert "when sent" in index.reason
    assert index.stats().reason == index.reason
