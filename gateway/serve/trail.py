"""What is noted of a request on its way, for its record and its answer's headers; no stage reads it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gateway.serve.errors import GatewayError
from telemetry.record import Outcome, RequestRecord
from telemetry.usage import Meter

if TYPE_CHECKING:
    from gateway.serve.body import Body
    from gateway.serve.catalog import Caller
    from gateway.serve.decide import Plan


class Trail:
    """One for each request. Times come from `clock` (seconds, monotonic), `at` from the wall clock."""

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
        "stages",
        "started",
        "status",
        "tokens",
        "traceparent",
    )

    def __init__(self, request_id: str, operation: str, at: float, clock: Callable[[], float]) -> None:
        self.id = request_id
        self.operation = operation
        self.at = at
        self.clock = clock
        self.started = clock()
        self.stages: list[tuple[str, float]] = []  # name of a stage, when it ended
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
        self.traceparent = ""

    def mark(self, stage: str) -> None:
        """The stage of this name has just ended."""
        self.stages.append((stage, self.clock()))

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
        return b"off" if self.tokens is None else b"%d->%d" % self.tokens

    def record(self) -> RequestRecord:
        meter, body, plan = self.meter, self.body, self.plan
        usage = meter.usage
        decided = next((when for stage, when in self.stages if stage == "decide"), None)
        return RequestRecord(
            id=self.id,
            at=self.at,
            operation=self.operation,
            caller=self.caller.id if self.caller else "",
            model=body.model if body else "",
            pool=plan.pool.name if plan else "",
            replica=self.replica,
            route=self.route,
            status=self.status,
            outcome=self.outcome,
            error=self.error,
            stream=body.stream if body else False,
            form=plan.form.name if plan else "as is",
            prompt_bytes=len(body.prompt_text) if body else 0,
            sent_bytes=self.sent_bytes,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            cached_tokens=(usage.cached_tokens or 0) if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
            prefix_hit=self.hit,
            queued=self.queued,
            decided=decided - self.started if decided is not None else 0.0,
            ttft=meter.first_token_at - self.started if meter.first_token_at is not None else None,
            tpot=meter.time_per_output_token,
            duration=self.clock() - self.started,
            because=msgspec.structs.asdict(plan.because) if plan else {},
            traceparent=self.traceparent,
            attempts=self.attempts,
        )
