"""What a simulated engine counts of itself; `metrics.py` says it in each engine's words."""

from bisect import bisect_left
from collections import Counter, deque
from typing import Final

_SECONDS: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_TOKENS: Final = (
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10000.0,
    20000.0,
    50000.0,
)


class Histogram:
    """Counts by bucket, Prometheus fashion."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Stats:
    """Running totals since the start."""

    def __init__(self) -> None:
        self.requests = 0  # that reached the scheduler
        self.finished: Counter[str] = Counter()  # by finish_reason
        self.failed: Counter[str] = Counter()  # overloaded, validation, dropped, ...
        self.cancelled = 0
        self.prompt_tokens = 0  # cached ones included
        self.cached_tokens = 0
        self.answer_tokens = 0
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self.steps = 0
        self.busy = 0  # sum over steps of the sequences computed in each
        self.longest = 0
        self.reused_blocks = 0
        self.missed_blocks = 0
        self.queued = Histogram()
        self.first_token = Histogram()
        self.per_token = Histogram()
        self.duration = Histogram()
        self.prompt_lengths = Histogram(_TOKENS)
        self.answer_lengths = Histogram(_TOKENS)
        self.iterations: deque[dict[str, object]] = deque(maxlen=1000)  # TensorRT-LLM's /metrics hands them out once
