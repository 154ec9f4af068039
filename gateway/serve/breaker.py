"""Holding back a replica that keeps failing, and letting it prove itself again.

    closed --3 failures in a row--> open --back-off over--> half-open --one request works--> closed
                                     ^                          |
                                     +---- it fails: back-off doubled

A pure state machine: time comes in as a clock, the verdict of a request as `worked` or `failed`.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from backends.types import Replica, ReplicaId

FAILURES = 3  # in a row, until a replica is held back
FIRST_BACKOFF = 1.0  # seconds
LONGEST_BACKOFF = 30.0


class _Trouble:
    """A replica that has failed since it last worked."""

    __slots__ = ("backoff", "failures", "incarnation", "probing", "until")

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.failures = 0
        self.backoff = 0.0  # seconds; 0: closed
        self.until = 0.0  # when the back-off is over
        self.probing = False  # half-open, and the one request is under way


class Breaker:
    """One for all replicas. `held_back` is the set that `decide` reads (`Live.blocked`): kept up to date in place."""

    def __init__(self, clock: Callable[[], float], held_back: set[ReplicaId]) -> None:
        self._clock = clock
        self._held_back = held_back
        self._troubles: dict[ReplicaId, _Trouble] = {}
        self._there: dict[ReplicaId, str] = {}  # incarnations, as `keep` was told

    def blocked(self) -> set[ReplicaId]:
        """The replicas held back now. To be asked before each decision: it is what ends a back-off."""
        if self._troubles:
            now = self._clock()
            for name, trouble in self._troubles.items():
                if trouble.backoff and not trouble.probing and now >= trouble.until:
                    self._held_back.discard(name)
        return self._held_back

    @contextmanager
    def attempt(self, replica: Replica) -> Generator[None]:
        """Around one request to `replica`: while the one that tests a half-open replica runs, others are held back.

        A request that ends without a verdict (its client left) gives the test to the next one.
        """
        trouble = self._of(replica)
        testing = trouble is not None and trouble.backoff > 0 and not trouble.probing and self._clock() >= trouble.until
        if trouble is None or not testing:
            yield
            return
        trouble.probing = True
        self._held_back.add(replica.id)
        try:
            yield
        finally:
            if trouble.probing:
                trouble.probing = False
                if self._troubles.get(replica.id) is trouble:
                    self._held_back.discard(replica.id)

    def worked(self, replica: Replica) -> None:
        """A request to it was answered (a refusal of the request itself is an answer)."""
        if self._of(replica) is not None:
            self._clear(replica.id)

    def failed(self, replica: Replica) -> None:
        """It could not be reached, broke off or went silent."""
        if self._there.get(replica.id, replica.incarnation) != replica.incarnation:
            return
        trouble = self._of(replica)
        if trouble is None:
            trouble = self._troubles[replica.id] = _Trouble(replica.incarnation)
            self._held_back.discard(replica.id)
        trouble.failures += 1
        if not trouble.backoff and trouble.failures >= FAILURES:
            self._hold(replica.id, trouble, FIRST_BACKOFF)
        elif trouble.backoff and (trouble.probing or self._clock() >= trouble.until):
            self._hold(replica.id, trouble, min(trouble.backoff * 2, LONGEST_BACKOFF))

    def keep(self, replicas: Iterable[Replica]) -> None:
        """Forget whoever is not among these: gone, or a new process behind the same id. For each new catalog.

        From then on, what is said of a process that was replaced does not count.
        """
        self._there = {replica.id: replica.incarnation for replica in replicas}
        for name in [name for name, trouble in self._troubles.items() if self._there.get(name) != trouble.incarnation]:
            self._clear(name)

    def next_change(self) -> float | None:
        """When (on the clock) the next back-off is over, for whoever asks `blocked` then; None: nothing is open."""
        ends = [trouble.until for trouble in self._troubles.values() if trouble.backoff and not trouble.probing]
        return min(ends, default=None)

    def _of(self, replica: Replica) -> _Trouble | None:
        trouble = self._troubles.get(replica.id)
        return trouble if trouble is not None and trouble.incarnation == replica.incarnation else None

    def _hold(self, name: ReplicaId, trouble: _Trouble, backoff: float) -> None:
        trouble.backoff = backoff
        trouble.until = self._clock() + backoff
        trouble.probing = False
        self._held_back.add(name)

    def _clear(self, name: ReplicaId) -> None:
        del self._troubles[name]
        self._held_back.discard(name)
