"""The last minute and the last five, for the console: rates, latencies and savings by pool and in all."""

from array import array
from collections.abc import Mapping
from math import exp, inf, log

import msgspec
import numpy as np
import numpy.typing as npt

from telemetry.instruments import tokens_removed
from telemetry.record import RequestRecord

SECONDS = 300  # the longest span that can be asked for
POOLS = 32  # more of them share one ring
REST = "_other"

# Times fall into bins that grow by an eighth, from 0.1 ms to about 15 minutes: a quantile is right within 6 %.
SMALLEST = 0.0001
GROWTH = 1.125
BINS = 136

# The columns of a second; the bins of TTFT and TPOT follow.
REQUESTS, ERRORS, REFUSED, OUTPUT, PROMPT, HIT, REMOVED, SCALARS = range(8)
WIDTH = SCALARS + 2 * BINS

_SCALE = 1 / log(GROWTH)
_OFFSET = log(SMALLEST)
_OURS = 500  # statuses from here on are failures of this side; those of an error below it are refusals

Counts = npt.NDArray[np.float64]


class Rates(msgspec.Struct, frozen=True):
    """One pool, or all of them, over one span. Times in seconds; None: nothing to tell it from."""

    requests: float = 0.0  # finished, per second
    output_tokens: float = 0.0  # per second, all users together
    user_tokens: float | None = None  # per second, as one user sees an answer run: the median
    ttft_p50: float | None = None
    ttft_p95: float | None = None
    tpot_p50: float | None = None
    tpot_p95: float | None = None
    prefix_hit: float | None = None  # share of all prompt tokens that the index expected in a cache
    errors: float | None = None  # share of requests that failed here or upstream, or broke off
    refused: float | None = None  # share that was refused for what the client asked: 4xx
    tokens_removed: float = 0.0  # by compression, per second
    count: int = 0  # requests that this is told from


class Span(msgspec.Struct, frozen=True):
    """The last `seconds`, or as long as the process runs if that is less."""

    seconds: int
    system: Rates
    pools: Mapping[str, Rates]


class Snapshot(msgspec.Struct, frozen=True):
    at: float  # Unix seconds
    minute: Span
    five_minutes: Span


class Window:
    """Rings of seconds, one for each pool. Adding a record is O(1). Memory: 335 kB a pool, at most POOLS of them."""

    def __init__(self, started: float) -> None:
        """`started`: wall-clock time at which counting begins, Unix seconds; records carry the same clock."""
        self._started = started
        self._rings: dict[str, _Ring] = {}

    def request(self, record: RequestRecord, now: float) -> None:
        """Count one request that finished at `now`; its tokens belong to that second."""
        ring = self._rings.get(record.pool)
        if ring is None:
            ring = self._open(record.pool)
        ring.add(record, int(now))

    def snapshot(self, now: float) -> Snapshot:
        """What happened up to `now`. Costs some tens of microseconds a pool."""
        return Snapshot(now, self.span(now, 60), self.span(now, SECONDS))

    def span(self, now: float, seconds: int) -> Span:
        """The last `seconds` (at most SECONDS)."""
        first = int(now) - seconds + 1  # the second that has begun counts as a whole one
        elapsed = max(1.0, min(now - max(float(first), self._started), float(seconds)))
        sums = {pool: ring.since(first, int(now)) for pool, ring in list(self._rings.items())}
        every = sum(sums.values(), np.zeros(WIDTH))
        pools = {pool: _rates(counts, elapsed) for pool, counts in sums.items() if pool}
        return Span(seconds, _rates(every, elapsed), pools)

    def _open(self, pool: str) -> "_Ring":
        if len(self._rings) >= POOLS:
            pool = REST
        return self._rings.setdefault(pool, _Ring())


class _Ring:
    """SECONDS rows of counts, each stamped with the second it belongs to."""

    __slots__ = ("_counts", "_stamps")

    def __init__(self) -> None:
        self._counts = array("f", bytes(4 * SECONDS * WIDTH))
        self._stamps = array("q", bytes(8 * SECONDS))

    def add(self, record: RequestRecord, second: int) -> None:
        row = second % SECONDS
        counts, at = self._counts, row * WIDTH
        if self._stamps[row] != second:
            counts[at : at + WIDTH] = array("f", bytes(4 * WIDTH))
            self._stamps[row] = second
        counts[at + REQUESTS] += 1
        if record.outcome in ("error", "interrupted"):
            ours = record.status >= _OURS or record.outcome == "interrupted"
            counts[at + (ERRORS if ours else REFUSED)] += 1
        counts[at + OUTPUT] += record.completion_tokens
        counts[at + PROMPT] += record.prompt_tokens
        counts[at + HIT] += record.prefix_hit * record.prompt_tokens
        if record.sent_bytes < record.prompt_bytes:
            counts[at + REMOVED] += tokens_removed(record)
        if record.ttft is not None:
            counts[at + SCALARS + bin_of(record.ttft)] += 1
        if record.tpot is not None:
            counts[at + SCALARS + BINS + bin_of(record.tpot)] += 1

    def since(self, first: int, last: int) -> Counts:
        """The sum of the rows from the second `first` to `last`, both included."""
        stamps = np.frombuffer(self._stamps, dtype=np.int64)
        rows = np.frombuffer(self._counts, dtype=np.float32).reshape(SECONDS, WIDTH)
        total: Counts = rows[(stamps >= first) & (stamps <= last)].sum(axis=0, dtype=np.float64)
        return total


def bin_of(seconds: float) -> int:
    """The bin of a time; the last one takes what is longer than all."""
    if seconds <= SMALLEST:
        return 0
    return min(int((log(seconds) - _OFFSET) * _SCALE), BINS - 1) if seconds < inf else BINS - 1


def quantile(bins: Counts, share: float) -> float | None:
    """The time that `share` of the values do not exceed: the middle of its bin. None without values."""
    below = np.cumsum(bins)
    if below[-1] <= 0:
        return None
    index = int(np.searchsorted(below, share * float(below[-1])))
    return exp(_OFFSET + (index + 0.5) / _SCALE)


def _rates(counts: Counts, elapsed: float) -> Rates:
    requests, errors, refused, output, prompt, hit, removed = (float(counts[column]) for column in range(SCALARS))
    first, per = counts[SCALARS : SCALARS + BINS], counts[SCALARS + BINS :]
    tpot = quantile(per, 0.5)
    return Rates(
        requests=requests / elapsed,
        output_tokens=output / elapsed,
        user_tokens=1 / tpot if tpot else None,
        ttft_p50=quantile(first, 0.5),
        ttft_p95=quantile(first, 0.95),
        tpot_p50=tpot,
        tpot_p95=quantile(per, 0.95),
        prefix_hit=hit / prompt if prompt else None,
        errors=errors / requests if requests else None,
        refused=refused / requests if requests else None,
        tokens_removed=removed / elapsed,
        count=round(requests),
    )
