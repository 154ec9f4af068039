"""Who is sampled, what goes to the model server, and the tree of a sampled request (golden)."""

from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanKind, StatusCode

from telemetry import names
from telemetry.spans import Tracer
from telemetry.traceparent import parse
from tests.support.golden import same_as_golden
from tests.support.telemetry import PROMPT, Clock, Counting, a_record

GOLDEN = Path(__file__).parent / "golden"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


class Spans(list):
    def on_end(self, span):
        self.append(span)


def a_tracer(sink, sample=0.01, random=None, clock=None):
    clock = clock or Clock(100.0)
    return Tracer(
        sample=sample,
        sink=sink,
        resource=Resource({"service.name": "turnout"}),
        random=random or Counting(),
        clock=clock,
        wall=lambda: 1_700_000_000.0 + clock.at - 100.0,
    )


def drawn(tree):
    """The tree as text: one span a line, children below their parent in the order of their beginning."""
    spans = {span.context.span_id: span for span in tree}
    below = {}
    for span in sorted(tree, key=lambda span: (span.start_time, span.end_time)):
        parent = span.parent.span_id if span.parent else None
        below.setdefault(parent if parent in spans else None, []).append(span)
    start = min(span.start_time for span in tree)
    lines = []

    def draw(span, depth):
        told = f"{(span.start_time - start) / 1e6:g}..{(span.end_time - start) / 1e6:g} ms"
        kind = "" if span.kind is SpanKind.INTERNAL else f" {span.kind.name.lower()}"
        error = f" ERROR {span.status.description}" if span.status.status_code is StatusCode.ERROR else ""
        lines.append(f"{'  ' * depth}{span.name}{kind} {told}{error}")
        lines.extend(f"{'  ' * depth}  - {name}: {span.attributes[name]!r}" for name in sorted(span.attributes))
        for child in below.get(span.context.span_id, []):
            draw(child, depth + 1)

    for root in below[None]:
        draw(root, 0)
    return "\n".join(lines) + "\n"


def a_life(tracer, clock, header=None, record=None, *, retried=False):
    """One request through all its stages; returns its trace."""
    trace = tracer.begin(header, "vendor=1")
    for name, seconds in (
        (names.AUTHENTICATE, 0.001),
        (names.PARSE, 0.002),
        (names.ADMIT, 0.001),
        (names.FACTS, 0.004),
    ):
        trace.stage(name)
        clock.at += seconds
    trace.stage(names.DECIDE)
    clock.at += 0.002
    trace.stage(names.QUEUE)
    clock.at += 0.01
    trace.stage(names.DECIDE)
    clock.at += 0.001
    trace.attempt("small-0")
    if retried:
        clock.at += 0.005
        trace.failed("upstream_failed")
        clock.at += 0.001
        trace.attempt("small-1")
    clock.at += 0.239
    record = record or a_record(because={"wait": 0.1, "prefill": 0.05}, replica="small-1" if retried else "small-0")
    tracer.end(trace, record)
    return trace


def test_the_tree_is_the_golden_one():
    spans, clock = Spans(), Clock(100.0)
    a_life(a_tracer(spans, clock=clock), clock, SAMPLED)
    same_as_golden(GOLDEN / "spans.txt", drawn(spans))


def test_the_tree_of_a_request_that_was_tried_twice_is_the_golden_one():
    spans, clock = Spans(), Clock(100.0)
    a_life(a_tracer(spans, clock=clock), clock, SAMPLED, retried=True)
    same_as_golden(GOLDEN / "spans_retried.txt", drawn(spans))


def test_the_tree_hangs_together():
    spans, clock = Spans(), Clock(100.0)
    a_life(a_tracer(spans, clock=clock), clock, SAMPLED, retried=True)
    assert len({span.context.span_id for span in spans}) == len(spans)
    assert {span.context.trace_id for span in spans} == {int(TRACE, 16)}
    *children, server = spans
    assert server.parent.span_id == int(SPAN, 16)
    assert server.parent.is_remote
    assert server.kind is SpanKind.SERVER
    assert server.context.trace_state.get("vendor") == "1"
    by_id = {span.context.span_id: span for span in spans}
    for child in children:
        parent = by_id[child.parent.span_id]
        assert not child.parent.is_remote
        assert parent.start_time <= child.start_time <= child.end_time <= parent.end_time
        assert child.context.trace_flags.sampled
        assert child.resource.attributes["service.name"] == "turnout"


def test_times_are_unix_nanoseconds():
    spans, clock = Spans(), Clock(100.0)
    a_life(a_tracer(spans, clock=clock), clock, SAMPLED)
    assert spans[-1].start_time == 1_700_000_000_000_000_000
    assert spans[-1].end_time == 1_700_000_000_260_000_000


def test_every_span_is_in_the_table_of_names():
    spans, clock = Spans(), Clock(100.0)
    a_life(a_tracer(spans, clock=clock), clock, SAMPLED)
    told = {span.name for span in spans[:-1]}
    assert told == {described.name for described in names.SPANS[1:]}
    described = {attribute.name for attribute in names.ATTRIBUTES}
    for span in spans:
        for name in span.attributes:
            assert name in described or name.startswith("turnout.because.")


def test_a_request_that_is_not_sampled_makes_no_span(monkeypatch):
    monkeypatch.setattr("telemetry.spans.SpanTree", None)  # touching it would fail
    monkeypatch.setattr("telemetry.spans.ReadableSpan", None)
    spans, clock = Spans(), Clock(100.0)
    a_life(a_tracer(spans, sample=1.0, clock=clock), clock, NOT_SAMPLED)
    assert spans == []


@pytest.mark.parametrize(("header", "sampled"), [(SAMPLED, True), (NOT_SAMPLED, False)])
@pytest.mark.parametrize("sample", [0.0, 1.0])
def test_a_callers_decision_is_kept(header, sampled, sample):
    trace = a_tracer(Spans(), sample=sample).begin(header)
    assert trace.context.sampled is sampled
    assert trace.context.trace_id == int(TRACE, 16)
    assert trace.context.span_id != int(SPAN, 16)
    assert trace.parent == parse(header)


@pytest.mark.parametrize("header", [None, "", "nonsense", f"ff-{TRACE}-{SPAN}-01"])
def test_without_a_valid_header_a_trace_is_begun(header):
    trace = a_tracer(Spans(), sample=1.0).begin(header, "vendor=1")
    assert trace.parent is None
    assert trace.context.trace_id == 1
    assert trace.context.sampled
    assert trace.attempt("small-0").keys() == {"traceparent"}  # a tracestate belongs to a traceparent


@pytest.mark.parametrize("sample", [0.0, 0.01, 0.25, 1.0])
def test_the_share_of_sampled_requests_is_the_one_asked_for(sample):
    import random

    tracer = a_tracer(Spans(), sample=sample, random=random.Random(7).getrandbits)
    share = sum(tracer.begin().context.sampled for _ in range(20_000)) / 20_000
    assert share == pytest.approx(sample, abs=0.01 if 0 < sample < 1 else 0)


def test_where_nobody_takes_spans_none_are_begun_but_a_callers_trace_goes_on():
    tracer = a_tracer(None, sample=1.0)
    assert not tracer.begin().context.sampled
    trace = tracer.begin(SAMPLED)
    assert trace.attempt("small-0")["traceparent"].endswith("-01")
    tracer.end(trace, a_record())


def test_each_attempt_has_an_id_of_its_own_that_the_engine_sees():
    spans, clock = Spans(), Clock(100.0)
    tracer = a_tracer(spans, clock=clock)
    trace = tracer.begin(SAMPLED, "vendor=1")
    first, second = trace.attempt("small-0"), trace.attempt("small-1")
    assert first["tracestate"] == second["tracestate"] == "vendor=1"
    sent = [parse(headers["traceparent"]) for headers in (first, second)]
    assert {context.trace_id for context in sent} == {int(TRACE, 16)}
    tracer.end(trace, a_record())
    upstream = [span.context.span_id for span in spans if span.name == "upstream"]
    assert upstream == [context.span_id for context in sent]
    assert trace.traceparent == f"00-{TRACE}-{spans[-1].context.span_id:016x}-01"


def test_a_failure_is_told_of_the_attempt_that_runs():
    spans, clock = Spans(), Clock(100.0)
    tracer = a_tracer(spans, clock=clock)
    trace = tracer.begin(SAMPLED)
    trace.failed("before any attempt")
    trace.attempt("small-0")
    trace.failed("Unreachable")
    clock.at += 1
    trace.failed("told twice")
    [attempt] = trace.attempts
    assert (attempt.error, attempt.ended) == ("Unreachable", 100.0)


@pytest.mark.parametrize(
    ("changes", "status", "description"),
    [
        ({}, StatusCode.UNSET, None),
        ({"status": 404, "outcome": "error", "error": "model_not_found"}, StatusCode.UNSET, None),
        ({"status": 502, "outcome": "error", "error": "upstream_failed"}, StatusCode.ERROR, "upstream_failed"),
        ({"outcome": "interrupted", "error": "stream_incomplete"}, StatusCode.ERROR, "stream_incomplete"),
        ({"outcome": "cancelled"}, StatusCode.UNSET, None),
    ],
)
def test_the_status_of_the_server_span(changes, status, description):
    spans, clock = Spans(), Clock(100.0)
    a_life(a_tracer(spans, clock=clock), clock, SAMPLED, a_record(**changes))
    assert (spans[-1].status.status_code, spans[-1].status.description) == (status, description)


def test_a_request_refused_at_once_is_a_tree_of_what_there_was():
    spans, clock = Spans(), Clock(100.0)
    tracer = a_tracer(spans, clock=clock)
    trace = tracer.begin(SAMPLED)
    trace.stage(names.AUTHENTICATE)
    clock.at += 0.001
    tracer.end(trace, a_record(pool="", replica="", caller="", status=401, outcome="error", ttft=None, tpot=None))
    assert [span.name for span in spans] == ["authenticate", "chat auto"]
    assert "turnout.pool" not in spans[-1].attributes


def test_no_prompt_text_in_any_span():
    spans, clock = Spans(), Clock(100.0)
    a_life(a_tracer(spans, clock=clock), clock, SAMPLED)
    assert PROMPT not in "".join(span.to_json() for span in spans)
