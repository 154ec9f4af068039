"""A paged KV cache that honours prefixes: blocks of tokens, chained hashes, counted references, oldest out first.

The rules are vLLM's: only whole blocks are shared, at least the last token of a prompt is always computed, and the
blocks of a finished sequence stay until their room is needed, its tail going first.
"""

from collections import OrderedDict
from collections.abc import Callable

import msgspec
import xxhash

from engines.sim.text import Tokens


class Stored(msgspec.Struct, frozen=True):
    """Consecutive blocks became known: others may use them from now on."""

    hashes: tuple[int, ...]
    parent: int | None  # hash of the block before the first of them
    tokens: tuple[int, ...]


class Removed(msgspec.Struct, frozen=True):
    """Blocks were forgotten to make room."""

    hashes: tuple[int, ...]


class Cleared(msgspec.Struct, frozen=True):
    """Everything was forgotten."""


Event = Stored | Removed | Cleared


class _Block:
    __slots__ = ("known_as", "references")

    def __init__(self) -> None:
        self.known_as: int | None = None  # its hash, where others may find it
        self.references = 1


class Held:
    """The blocks that one running sequence holds; `hit` of its tokens were found computed."""

    __slots__ = ("blocks", "hashes", "hit")

    def __init__(self, blocks: list[_Block], hashes: list[int], hit: int) -> None:
        self.blocks = blocks
        self.hashes = hashes  # of the whole blocks computed so far
        self.hit = hit


def chain(tokens: Tokens, block_tokens: int, *, start: int = 0, parent: int = 0, stop: int) -> list[int]:
    """Hashes of blocks `start`..`stop`-1; each covers its own tokens and, through its parent, all before them."""
    hashes: list[int] = []
    for index in range(start, stop):
        piece = tokens[index * block_tokens : (index + 1) * block_tokens]
        parent = xxhash.xxh3_64_intdigest(piece.tobytes(), seed=parent)
        hashes.append(parent)
    return hashes


class PagedCache:
    """`capacity` blocks of `block_tokens` tokens each. Not thread-safe; never holds more than its capacity."""

    def __init__(self, capacity: int, block_tokens: int, tell: Callable[[Event], None] = lambda _: None) -> None:
        if capacity < 1 or block_tokens < 1:
            raise ValueError("A cache needs at least one block of at least one token.")
        self.capacity = capacity
        self.block_tokens = block_tokens
        self._tell = tell
        self._known: dict[int, _Block] = {}
        self._idle: OrderedDict[int, _Block] = OrderedDict()  # known, referenced by nobody; oldest first
        self._held = 0

    @property
    def held(self) -> int:
        """Blocks that running sequences hold."""
        return self._held

    @property
    def kept(self) -> int:
        """Blocks that nobody holds but whose contents can still be found."""
        return len(self._idle)

    @property
    def used(self) -> float:
        """Share of the blocks that running sequences hold, 0..1: what vLLM calls kv_cache_usage_perc."""
        return self._held / self.capacity

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def look(self, tokens: Tokens) -> int:
        """How many leading tokens of this prompt are computed already; at most all but the last."""
        return len(self._find(tokens)) * self.block_tokens

    def open(self, tokens: Tokens, room: int) -> Held | None:
        """Hold blocks for `room` tokens, those of the known prefix among them. None, and no change: they do not fit."""
        hashes = self._find(tokens)
        found = [self._known[one] for one in hashes]
        idle = sum(block.references == 0 for block in found)
        missing = max(self.blocks_for(room) - len(found), 0)
        if missing > self.capacity - self._held - idle:
            return None
        for one, block in zip(hashes, found, strict=True):
            if block.references == 0:
                del self._idle[one]
                self._held += 1
            block.references += 1
        return Held(found + self._take(missing), hashes, len(hashes) * self.block_tokens)

    def grow(self, held: Held, room: int) -> bool:
        """Hold as many blocks as `room` tokens need; False, and no change, where they do not fit."""
        missing = self.blocks_for(room) - len(held.blocks)
        if missing > self.capacity - self._held:
            return False
        if missing > 0:
            held.blocks.extend(self._take(missing))
        return True

    def fill(self, held: Held, tokens: Tokens, computed: int) -> None:
        """Make the whole blocks among the first `computed` tokens known to others."""
        first, whole = len(held.hashes), computed // self.block_tokens
        if whole <= first:
            return
        parent = held.hashes[-1] if held.hashes else 0
        new = chain(tokens, self.block_tokens, start=first, parent=parent, stop=whole)
        held.hashes.extend(new)
        run: list[int] = []
        for index, one in enumerate(new, start=first):
            if one in self._known:  # somebody computed the same at the same time: ours stays private
                self._announce(held, tokens, index, run)
                run = []
                continue
            held.blocks[index].known_as = one
            self._known[one] = held.blocks[index]
            run.append(one)
        self._announce(held, tokens, whole, run)

    def close(self, held: Held) -> None:
        """Let go of the blocks. The last of them become the oldest: a tail is worth less than a head."""
        for block in reversed(held.blocks):
            block.references -= 1
            if block.references == 0:
                self._held -= 1
                if block.known_as is not None:
                    self._idle[block.known_as] = block
        held.blocks = []

    def clear(self) -> bool:
        """Forget all prefixes; False, and no change, while anything is held (as vLLM's reset does)."""
        if self._held:
            return False
        self._known.clear()
        self._idle.clear()
        self._tell(Cleared())
        return True

    def _find(self, tokens: Tokens) -> list[int]:
        hashes: list[int] = []
        parent = 0
        for index in range(max(len(tokens) - 1, 0) // self.block_tokens):
            (parent,) = chain(tokens, self.block_tokens, start=index, parent=parent, stop=index + 1)
            if parent not in self._known:
                break
            hashes.append(parent)
        return hashes

    def _take(self, count: int) -> list[_Block]:
        """New blocks; the oldest idle ones make room where there is none. The caller has checked that they fit."""
        removed: list[int] = []
        for _ in range(self._held + len(self._idle) + count - self.capacity):
            one, _block = self._idle.popitem(last=False)
            del self._known[one]
            removed.append(one)
        if removed:
            self._tell(Removed(tuple(removed)))
        self._held += count
        return [_Block() for _ in range(count)]

    def _announce(self, held: Held, tokens: Tokens, end: int, run: list[int]) -> None:
        if run:
            first = end - len(run)
            part = tokens[first * self.block_tokens : end * self.block_tokens]
            self._tell(Stored(tuple(run), held.hashes[first - 1] if first else None, tuple(part)))
