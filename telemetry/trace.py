"""Where the time of one request went: when each stage began, and the attempts at replicas. No spans are made here."""

from collections.abc import Callable

import msgspec

from telemetry import names
from telemetry.traceparent import Context, written

Random = Callable[[int], int]  # as random.getrandbits


class Attempt(msgspec.Struct):
    """One try at one replica, and the id by which the engine knows it."""

    context: Context
    replica: str
    begun: float
    ended: float | None = None
    error: str = ""  # why it failed; empty: it answered


class Trace:
    """The stages of one request as they pass. Marking one costs a clock reading and a list entry."""

    __slots__ = ("_clock", "_random", "attempts", "context", "parent", "stages", "started", "tracestate")

    def __init__(
        self, context: Context, parent: Context | None, tracestate: str, clock: Callable[[], float], random: Random
    ) -> None:
        self.context = context  # of the request's own span
        self.parent = parent  # of the caller's, where it sent one
        self.tracestate = tracestate
        self._clock = clock
        self._random = random
        self.started = clock()
        self.stages: list[tuple[str, float]] = []
        self.attempts: list[Attempt] = []

    def stage(self, name: str) -> None:
        """A stage begins (telemetry.names), and with it the one before ends."""
        self.stages.append((name, self._clock()))

    def attempt(self, replica: str) -> dict[str, str]:
        """A try at a replica begins; the headers that pass the trace on to it."""
        now = self._clock()
        if self.attempts and self.attempts[-1].ended is None:
            self.attempts[-1].ended = now
        context = Context(self.context.trace_id, self._random(64) or 1, self.context.sampled)
        self.attempts.append(Attempt(context, replica, now))
        self.stages.append((names.UPSTREAM, now))
        headers = {"traceparent": written(context)}
        if self.tracestate:
            headers["tracestate"] = self.tracestate
        return headers

    def failed(self, error: str) -> None:
        """The attempt that runs, if one does, has failed: `error` is a code, no text from the client."""
        if self.attempts and self.attempts[-1].ended is None:
            self.attempts[-1].ended = self._clock()
            self.attempts[-1].error = error

    @property
    def traceparent(self) -> str:
        return written(self.context)
