"""Which replica holds which prefix: blocks of prompt text, hashed in a chain and noted when they were sent.

Why blocks of text: the engine's own blocks are of tokens, and a tokenizer costs milliseconds. What is indexed is what
was sent; the answer's own text is in the engine's cache too, but comes back as a part of the next prompt.

Why an entry can be wrong: the engine evicts without telling. So each replica's share is bounded, least recently used
blocks go first, and `trust` shrinks the bound of a replica whose engine reports fewer cached tokens than expected.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from backends.types import Replica, ReplicaId

# A block's size grows with its place: near the start every bit counts, deep inside a long prompt 2 kB are little.
TIERS = ((8_192, 1), (65_536, 4))  # up to this byte, blocks of this many times block_bytes
LAST_TIER = 16

JUDGED = 256  # expected tokens below which nothing is learned: engines count in whole blocks of up to 128
FAR_BELOW = 0.5  # reported / expected
STRIKES = 8  # disappointments in a row after which a replica is taken not to cache at all
FLOOR = 64  # blocks that a bound never goes below

REASON = "no cache events from the engines: noted when sent"


class IndexStats(msgspec.Struct, frozen=True):
    blocks: int
    replicas: int
    disbelieved: int  # replicas that reported no cached tokens time and again
    mode: str
    reason: str


class _Tier(msgspec.Struct, frozen=True):
    """Blocks of `step` bytes from byte `start` to `stop`; `before` blocks come before them."""

    before: int
    start: int
    stop: int
    step: int


def _tiers(block: int) -> tuple[_Tier, ...]:
    tiers: list[_Tier] = []
    before = start = 0
    for limit, times in (*TIERS, (sys.maxsize, LAST_TIER)):
        count = max(0, limit - start) // (block * times)
        stop = start + count * block * times
        tiers.append(_Tier(before, start, stop, block * times))
        before, start = before + count, stop
    return tuple(tiers)


class _Held:
    """What one incarnation is believed to hold: block hashes, least recently used first."""

    __slots__ = ("blocks", "bound", "incarnation", "strikes")

    def __init__(self, incarnation: str, bound: int) -> None:
        self.incarnation = incarnation
        self.bound = bound
        self.strikes = 0
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def touch(self, chain: Sequence[int]) -> None:
        """Note the chain, last block first: so a block always outlives those that build on it."""
        blocks = self.blocks
        for block in reversed(chain[: self.bound]):
            if block in blocks:
                blocks.move_to_end(block)
            else:
                blocks[block] = None
        self.shrink()

    def shrink(self) -> None:
        while len(self.blocks) > self.bound:
            self.blocks.popitem(last=False)

    def leading(self, chain: Sequence[int]) -> int:
        """How many blocks of the chain are held from its start: by halving, since no held block lacks its parent."""
        if chain[0] not in self.blocks:
            return 0
        if chain[-1] in self.blocks:
            return len(chain)
        low, high = 1, len(chain) - 1
        while low < high:
            middle = (low + high) // 2
            if chain[middle] in self.blocks:
                low = middle + 1
            else:
                high = middle
        return low


class PrefixIndex:
    """One for each gateway process; about 125 bytes a block, so the 65,536 blocks of a replica take about 8 MB."""

    mode = "approximate"
    reason = REASON

    def __init__(self, block_bytes: int = 128, blocks_per_replica: int = 65_536) -> None:
        self._tiers = _tiers(block_bytes)
        self._bound = blocks_per_replica
        self._held: dict[ReplicaId, _Held] = {}

    def chain(self, seed: bytes | str, text: bytes) -> tuple[int, ...]:
        """A hash for each whole block of `text`, each over its block and all before it.

        `seed` keeps apart what engines keep apart although the text is equal: model, adapter, cache salt.
        """
        last = xxh3_64_intdigest(seed.encode() if isinstance(seed, str) else seed)
        chain: list[int] = []
        digest, add = xxh3_64_intdigest, chain.append  # 100 blocks of a 32 kB prompt are each looked up otherwise
        for tier in self._tiers:
            start = tier.start
            for end in range(start + tier.step, min(tier.stop, len(text)) + 1, tier.step):
                last = digest(text[start:end], last)
                add(last)
                start = end
        return tuple(chain)

    def size(self, count: int) -> int:
        """Bytes in the first `count` blocks."""
        tier = next(tier for tier in reversed(self._tiers) if count >= tier.before)
        return tier.start + (count - tier.before) * tier.step

    def hits(self, replicas: Iterable[Replica], chain: Sequence[int]) -> dict[ReplicaId, int]:
        """Bytes of the prompt, from its start, that each replica is believed to hold; those with none are left out."""
        if not chain:
            return {}
        found: dict[ReplicaId, int] = {}
        for replica in replicas:
            held = self._held.get(replica.id)
            if held is None or held.incarnation != replica.incarnation or held.strikes >= STRIKES:
                continue
            count = held.leading(chain)
            if count:
                found[replica.id] = self.size(count)
        return found

    def record(self, replica: Replica, chain: Sequence[int]) -> None:
        """The prompt with this chain was sent to this replica. A new incarnation starts empty."""
        held = self._held.get(replica.id)
        if held is None or held.incarnation != replica.incarnation:
            held = self._held[replica.id] = _Held(replica.incarnation, self._bound)
        held.touch(chain)

    def withdraw(self, replica: Replica, chain: Sequence[int], size: int) -> None:
        """The prompt was not read after all: but for its first `size` bytes, held before, its blocks go again."""
        held = self._held.get(replica.id)
        if held is not None and held.incarnation == replica.incarnation:
            for count, block in enumerate(chain, 1):
                if self.size(count) > size:
                    held.blocks.pop(block, None)

    def trust(self, replica: Replica, *, expected: float, reported: float) -> None:
        """Learn from what the engine says it had cached of a prompt, in tokens; `expected`: what `hits` made of it.

        Far below: the engine forgets sooner than this index, so the replica's bound loses a quarter, oldest blocks
        first (the prompt just answered is held now, whatever was before). Time and again: nothing more is expected
        of it until it reports cached tokens. As expected: the bound grows back, an eighth at a time.
        """
        held = self._held.get(replica.id)
        if held is None or held.incarnation != replica.incarnation:
            return
        if reported >= JUDGED and reported >= FAR_BELOW * expected:
            held.strikes = 0
            held.bound = min(self._bound, held.bound + max(1, held.bound // 8))
        elif expected >= JUDGED and reported < FAR_BELOW * expected:
            held.strikes += 1
            held.bound = max(min(FLOOR, self._bound), min(held.bound, len(held.blocks)) * 3 // 4)
            held.shrink()

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica is gone."""
        self._held.pop(replica_id, None)

    def keep(self, replicas: Iterable[Replica]) -> None:
        """Forget every replica that is not among these: called with each new catalog."""
        there = {replica.id: replica.incarnation for replica in replicas}
        for name in [name for name, held in self._held.items() if there.get(name) != held.incarnation]:
            del self._held[name]

    def stats(self) -> IndexStats:
        every = self._held.values()
        return IndexStats(
            blocks=sum(len(held.blocks) for held in every),
            replicas=len(every),
            disbelieved=sum(held.strikes >= STRIKES for held in every),
            mode=self.mode,
            reason=self.reason,
        )
