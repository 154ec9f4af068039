"""What a pool's demand has looked like lately, boiled down to the few numbers that the policy reads."""

from collections import deque

import msgspec


class Seen(msgspec.Struct, frozen=True):
    """Demand of one pool as last reported. Times are seconds of the caller's clock, counts are requests.

    A report that says zero is a fact; no report is no fact, and a gap in the reports starts `since` anew.
    """

    at: float  # the last report
    since: float  # reports have come without a gap from here on
    running: int  # at the replicas, as gateways and engines count them (the larger of the two)
    waiting: int  # in the gateways' queues
    peak: int  # highest running + waiting in the calm window
    busy_at: float  # when there was last any demand; `since` where there was none
    kv_used: float | None = None  # mean share of the KV cache in use over ready replicas; None: they do not say

    @property
    def demand(self) -> int:
        return self.running + self.waiting


class _Sample(msgspec.Struct, frozen=True):
    at: float
    demand: int


class Window:
    """Reports of one pool, kept for as long as the policy looks back."""

    def __init__(self, *, calm_seconds: float, stale_seconds: float) -> None:
        self._calm = calm_seconds
        self._stale = stale_seconds
        self._samples: deque[_Sample] = deque()
        self._seen: Seen | None = None

    @property
    def seen(self) -> Seen | None:
        """None until the first report."""
        return self._seen

    def report(
        self, at: float, *, running: int, waiting: int, last_request_at: float = 0.0, kv_used: float | None = None
    ) -> None:
        """Take in one complete report: every gateway that lives has said what it holds for this pool.

        `last_request_at` tells of requests that came and went between two reports.
        """
        before = self._seen
        gap = before is None or at - before.at > self._stale
        if gap:
            self._samples.clear()
        demand = running + waiting
        self._keep(_Sample(at, demand))
        since = at if before is None or gap else before.since
        busy_at = at if demand else max(since if before is None or gap else before.busy_at, last_request_at)
        peak = max(sample.demand for sample in self._samples)
        self._seen = Seen(at, since, running, waiting, peak, busy_at, kv_used)

    def _keep(self, sample: _Sample) -> None:
        """Drop what left the window, and what a later and higher sample makes unable to be the peak."""
        samples = self._samples
        while samples and samples[0].at < sample.at - self._calm:
            samples.popleft()
        while samples and samples[-1].demand <= sample.demand:
            samples.pop()
        samples.append(sample)
