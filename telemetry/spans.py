"""The span tree of a sampled request, built from its stage times after it is done; and who is sampled."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from telemetry import names, traceparent
from telemetry.record import RequestRecord
from telemetry.trace import Attempt, Random, Trace
from telemetry.traceparent import Context

SPAN_BITS = 64
TRACE_BITS = 128
Attributes = Mapping[str, str | bool | int | float]


class Sink(Protocol):
    """Takes finished spans: the SDK's BatchSpanProcessor, or a list in a test."""

    def on_end(self, span: ReadableSpan) -> None: ...


class Tracer:
    """Begins the trace of each request, and ends it in spans where it is sampled."""

    def __init__(
        self,
        *,
        sample: float,
        sink: Sink | None,
        resource: Resource,
        random: Random,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """`sample`: share of the requests that come without a traceparent. `sink` None: nobody wants spans.

        `clock` is monotonic and the one that the meter reads; `wall` is Unix time.
        """
        self._bound = round(sample * 2**SPAN_BITS) if sink is not None else 0
        self._sink = sink
        self._resource = resource
        self._random = random
        self._clock = clock
        self._wall = wall

    def begin(self, header: str | None = None, tracestate: str | None = None) -> Trace:
        """The trace of a request that came with these headers. A caller's own decision to sample is kept."""
        parent = traceparent.parse(header)
        if parent is not None:
            context = Context(parent.trace_id, self._random(SPAN_BITS) or 1, parent.sampled)
            return Trace(context, parent, traceparent.state(tracestate), self._clock, self._random)
        trace_id = self._random(TRACE_BITS) or 1
        # The low half decides, as in OpenTelemetry's own ratio sampler, so that others who sample decide alike.
        sampled = trace_id & (2**SPAN_BITS - 1) < self._bound
        return Trace(Context(trace_id, self._random(SPAN_BITS) or 1, sampled), None, "", self._clock, self._random)

    def end(self, trace: Trace, record: RequestRecord) -> None:
        """The request is done: hand over its spans, if it is sampled and somebody takes them."""
        if trace.context.sampled and self._sink is not None:
            ended = self._clock()
            tree = SpanTree(
                trace=trace,
                record=record,
                ended=ended,
                offset=self._wall() - ended,
                resource=self._resource,
                random=self._random,
            )
            for span in tree.spans():
                self._sink.on_end(span)


class SpanTree(msgspec.Struct, frozen=True, kw_only=True):
    """The spans of one request. Built as the SDK's read-only spans: their ids were given out before they end."""

    trace: Trace
    record: RequestRecord
    ended: float  # on the trace's clock, seconds
    offset: float  # seconds from that clock to Unix time
    resource: Resource
    random: Random

    def spans(self) -> Iterator[ReadableSpan]:
        """Children first, the server span last."""
        for name, begun, until in _stages(self.trace, self.ended):
            yield self._inside(name, self.trace.context, (begun, until))
        for index, attempt in enumerate(self.trace.attempts):
            yield from self._attempt(index, attempt)
        yield self._server()

    def _attempt(self, index: int, attempt: Attempt) -> Iterator[ReadableSpan]:
        if attempt is self.trace.attempts[-1]:
            for name, begun, until in _tokens(self.trace, self.record, attempt):
                yield self._inside(name, attempt.context, (begun, until))
        yield self._span(
            name=names.UPSTREAM,
            context=attempt.context,
            parent=self.trace.context,
            times=(attempt.begun, attempt.ended if attempt.ended is not None else self.ended),
            attributes={names.REPLICA: attempt.replica, names.RESEND_COUNT: index},
            kind=SpanKind.CLIENT,
            error=attempt.error,
        )

    def _server(self) -> ReadableSpan:
        record = self.record
        operation = names.OPERATIONS.get(record.operation, record.operation)
        wrong = record.status >= 500 or record.outcome == "interrupted"  # noqa: PLR2004 - a 4xx is the client's error
        return self._span(
            name=f"{operation} {record.model}",
            context=self.trace.context,
            parent=self.trace.parent,
            times=(self.trace.started, self.ended),
            attributes=_attributes(record, operation),
            kind=SpanKind.SERVER,
            error=(record.error or record.outcome) if wrong else "",
        )

    def _inside(self, name: str, parent: Context, times: tuple[float, float]) -> ReadableSpan:
        context = Context(parent.trace_id, self.random(SPAN_BITS) or 1, sampled=True)
        return self._span(name=name, context=context, parent=parent, times=times)

    def _span(
        self,
        *,
        name: str,
        context: Context,
        parent: Context | None,
        times: tuple[float, float],
        attributes: Attributes | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str = "",
    ) -> ReadableSpan:
        state = self.trace.tracestate
        remote = parent is self.trace.parent
        return ReadableSpan(
            name=name,
            context=_context(context, state, remote=False),
            parent=_context(parent, state, remote=remote) if parent is not None else None,
            resource=self.resource,
            attributes=attributes or {},
            kind=kind,
            status=Status(StatusCode.ERROR, error) if error else Status(),
            start_time=self._unix(times[0]),
            end_time=self._unix(times[1]),
            instrumentation_scope=InstrumentationScope(names.SCOPE),
        )

    def _unix(self, at: float) -> int:
        return round((at + self.offset) * 1e9)


def _context(context: Context, tracestate: str, *, remote: bool) -> SpanContext:
    state = TraceState.from_header([tracestate]) if tracestate else TraceState()
    return SpanContext(
        context.trace_id, context.span_id, is_remote=remote, trace_flags=TraceFlags(1), trace_state=state
    )


def _stages(trace: Trace, ended: float) -> Iterator[tuple[str, float, float]]:
    """Name, begin and end of each stage; a stage lasts until the next one, or the next attempt, begins."""
    ends = [begun for _, begun in trace.stages[1:]] + [ended]
    for (name, begun), until in zip(trace.stages, ends, strict=False):
        if name != names.UPSTREAM:
            yield name, begun, until


def _tokens(trace: Trace, record: RequestRecord, attempt: Attempt) -> Iterator[tuple[str, float, float]]:
    """From sending to the first token, and from there to the last: none where no token came."""
    if record.ttft is None:
        return
    first = trace.started + record.ttft
    yield names.FIRST_TOKEN, attempt.begun, first
    if record.tpot is not None:
        yield names.DECODE, first, first + record.tpot * (record.completion_tokens - 1)


def _attributes(record: RequestRecord, operation: str) -> Attributes:
    """Of the server span: what is empty is left out."""
    attributes: dict[str, str | bool | int | float] = {
        names.OPERATION_NAME: operation,
        names.PROVIDER_NAME: names.PROVIDER,
        names.REQUEST_MODEL: record.model,
        names.STREAM: record.stream,
        names.STATUS_CODE: record.status,
        names.OUTCOME: record.outcome,
        names.REQUEST_ID: record.id,
    }
    optional: dict[str, str | int] = {
        names.ERROR_TYPE: record.error,
        names.CALLER: record.caller,
        names.POOL: record.pool,
        names.REPLICA: record.replica,
        names.ROUTE: record.route,
        names.INPUT_TOKENS: record.prompt_tokens,
        names.OUTPUT_TOKENS: record.completion_tokens,
        names.CACHED_TOKENS: record.cached_tokens,
    }
    attributes.update({name: value for name, value in optional.items() if value})
    if record.pool:
        attributes.update({names.FORM: record.form, names.HIT: record.prefix_hit, names.QUEUED: record.queued})
    attributes.update({f"{names.BECAUSE}.{term}": seconds for term, seconds in record.because.items()})
    return attributes
