"""What is noted of a request on its way, for its record and its answer's headers; no stage reads it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gateway.serve.errors import GatewayError
from telemetry import names
from telemetry.record import Outcome, RequestRecord
from telemetry.trace import Trace
from telemetry.usage import Meter

if TYPE_CHECKING:
    from gateway.serve.body import Body
    from gateway.serve.catalog import Caller
    from gateway.serve.decide import Plan

LONGEST_NAME = 200  # characters of a model's name or an error code


class Trail:
    """One for each request. Times come from `clock` (seconds, monotonic; the trace's too), `at` from the wall clock."""

    __slots__ = (
        "at",
        "attempts",
        "body",
        "caller",
        "clock",
        "error",
        "hit",
        "id",
        "meter",
        "mode",
        "operation",
        "outcome",
        "plan",
        "queued",
        "replica",
        "route",
        "sent_bytes",
        "started",
        "status",
        "tokens",
        "trace",
    )

    def __init__(self, request_id: str, operation: str, at: float, clock: Callable[[], float], trace: Trace) -> None:
        self.id = request_id
        self.operation = operation
        self.at = at
        self.clock = clock
        self.trace = trace
        self.started = trace.started
        self.meter = Meter(clock)
        self.caller: Caller | None = None
        self.body: Body | None = None
        self.route = ""
        self.mode = ""  # of the prefix index: "exact", or "approximate" and why
        self.plan: Plan | None = None
        self.replica = ""
        self.hit = 0.0
        self.tokens: tuple[int, int] | None = None  # prompt tokens before and after compression, estimated
        self.sent_bytes = 0
        self.queued = 0.0
        self.attempts = 0
        self.status = 200
        self.outcome: Outcome = "ok"
        self.error = ""

    def failed(self, error: Exception) -> None:
        self.outcome = "error"
        if isinstance(error, GatewayError):
            self.status, self.error = error.status, error.code or error.type
        else:
            self.status, self.error = 500, "internal_error"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What an answer says of itself, as far as it is known; docs/reference/http.md explains each."""
        told = [(b"x-turnout-request-id", self.id.encode())]
        if self.route:
            told.append((b"x-turnout-route", self.route.encode()))
        if self.plan is not None:
            told.append((b"x-turnout-pool", self.plan.pool.name.encode()))
        if self.replica:
            told += [
                (b"x-turnout-replica", self.replica.encode()),
                (b"x-turnout-prefix-hit", b"%.2f" % self.hit),
                (b"x-turnout-prefix-mode", self.mode.encode()),
                (b"x-turnout-compression", self._compression()),
            ]
        return told

    def _compression(self) -> bytes:
        changed = self.plan is not None and self.plan.form.text is not None
        return b"%d->%d" % self.tokens if changed and self.tokens else b"off"

    def record(self) -> RequestRecord:
        meter, body, plan = self.meter, self.body, self.plan
        usage = meter.usage
        return RequestRecord(
            id=self.id,
            at=self.at,
            operation=self.operation,
            caller=self.caller.id if self.caller else "",
            model=_word(body.model) if body else "",
            pool=plan.pool.name if plan else "",
            replica=self.replica,
            route=self.route,
            status=self.status,
            outcome=self.outcome,
            error=_word(self.error),
            stream=body.stream if body else False,
            form=plan.form.name if plan else "as is",
            prompt_bytes=len(body.prompt_text) if body else 0,
            sent_bytes=self.sent_bytes,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            cached_tokens=(usage.cached_tokens or 0) if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
            prefix_hit=self.hit,
            queued=self.queued,
            decided=self._decided(),
            ttft=meter.first_token_at - self.started if meter.first_token_at is not None else None,
            tpot=meter.time_per_output_token,
            duration=self.clock() - self.started,
            because=msgspec.structs.asdict(plan.because) if plan else {},
            traceparent=self.trace.traceparent,
            attempts=self.attempts,
        )

    def _decided(self) -> float:
        """Seconds from the request's first byte to its first queue or attempt: the gateway's own work."""
        for stage, began in self.trace.stages:
            if stage in (names.QUEUE, names.UPSTREAM):
                return began - self.started
        return 0.0


def _word(text: str) -> str:
    """A name from outside as a record may hold it: short, and without what no database column takes (NUL)."""
    if len(text) <= LONGEST_NAME and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST_NAME])
