"""What a collector receives over OTLP/HTTP, decoded with OpenTelemetry's own protocol buffers."""

import gzip
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from telemetry import names
from telemetry.setup import open_telemetry
from tests.support.telemetry import a_record, read_exposition

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Keeps what is pushed; answers `status`."""

    def __init__(self, status=200):
        received = self.received = {"/v1/metrics": [], "/v1/traces": []}
        self.headers = []
        headers, arrived = self.headers, threading.Event()
        self.arrived = arrived

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                received[self.path].append(body)
                headers.append(dict(self.headers))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()
                arrived.set()

            def log_message(self, *args): ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def metrics(self):
        """{name: metric} of the last push, and its resource's attributes."""
        push = ExportMetricsServiceRequest.FromString(self.received["/v1/metrics"][-1])
        [resource] = push.resource_metrics
        [scope] = resource.scope_metrics
        assert scope.scope.name == "turnout"
        return {metric.name: metric for metric in scope.metrics}, plain(resource.resource.attributes)

    def spans(self):
        for body in self.received["/v1/traces"]:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    yield from scope.spans


def plain(attributes):
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in attributes}


def some_requests(telemetry):
    for index in range(20):
        telemetry.request(a_record(ttft=0.01 * index, tpot=0.005 * index, prompt_tokens=index * 40 + 1))
    telemetry.request(a_record(pool="large", model="large", route="forced", duration=3.0))
    telemetry.request(a_record(outcome="error", error="upstream_failed", status=502, ttft=None, tpot=None))
    telemetry.instruments.queue("small", 3, 4)
    telemetry.instruments.index(100, "exact")


def as_exposed(metric, table):
    """A pushed metric in the terms of the Prometheus text: {(name, labels): value}."""
    data = getattr(metric, metric.WhichOneof("data"))
    for point in data.data_points:
        labels = {name.replace(".", "_"): str(value) for name, value in plain(point.attributes).items()}
        if table.kind != "histogram":
            value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            yield (table.prometheus, frozenset(labels.items())), value
            continue
        assert not point.HasField("min")
        assert not point.HasField("max")
        assert tuple(point.explicit_bounds) == table.buckets
        below = 0
        for bound, count in zip([*point.explicit_bounds, None], point.bucket_counts, strict=True):
            below += count
            le = {"le": "+Inf" if bound is None else repr(bound)}
            yield (f"{table.prometheus}_bucket", frozenset((labels | le).items())), below
        yield (f"{table.prometheus}_count", frozenset(labels.items())), point.count
        yield (f"{table.prometheus}_sum", frozenset(labels.items())), point.sum


def test_the_numbers_pushed_are_the_numbers_exposed():
    with Collector() as collector:
        with open_telemetry(otlp_endpoint=collector.url, export_interval=60, instance="gateway-1") as telemetry:
            some_requests(telemetry)
            telemetry.instruments.watch(names.CPU_TIME, lambda: {(): 1.5})  # these move between two readings
            telemetry.instruments.watch(names.MEMORY, lambda: {(): 10**8})
            telemetry.instruments.watch(names.DESCRIPTORS, lambda: {(): 9})
            telemetry.instruments.watch(names.SYSTEM_TOKENS, lambda: {("small",): 12.5})
            telemetry.instruments.watch(names.USER_TOKENS, lambda: {("small",): 50.25})
            exposed, kinds = read_exposition(telemetry.exposition().decode())
        pushed, resource = collector.metrics()
    assert resource["service.name"] == "turnout"
    assert resource["service.instance.id"] == "gateway-1"
    table = {metric.name: metric for metric in names.METRICS}
    assert set(pushed) <= set(table)
    told = dict(pair for metric in pushed.values() for pair in as_exposed(metric, table[metric.name]))
    exposed = {key: value for key, value in exposed.items() if key[0] != "target_info"}
    assert len(told) > 200
    assert told == pytest.approx(exposed)
    assert {table[name].prometheus for name in pushed} == set(kinds) - {"target_info"}


def test_a_pushed_metric_says_what_it_is():
    with Collector() as collector:
        with open_telemetry(otlp_endpoint=collector.url, export_interval=60) as telemetry:
            before = time.time_ns()
            some_requests(telemetry)
        pushed, _ = collector.metrics()
    requests = pushed["turnout.requests"]
    assert requests.sum.is_monotonic
    assert requests.sum.aggregation_temporality == 2  # cumulative
    assert requests.unit == "{request}"
    statuses = {plain(point.attributes)["http.response.status_code"] for point in requests.sum.data_points}
    assert statuses == {200, 502}  # a number, as the conventions ask
    assert pushed["turnout.queue.waiting"].WhichOneof("data") == "gauge"
    duration = pushed["gen_ai.server.request.duration"]
    assert duration.histogram.aggregation_temporality == 2
    for point in duration.histogram.data_points:
        assert 0 < point.start_time_unix_nano < before < point.time_unix_nano


def test_it_is_pushed_again_and_again_and_once_at_the_end():
    with Collector() as collector:
        with open_telemetry(otlp_endpoint=collector.url, export_interval=0.02) as telemetry:
            assert collector.arrived.wait(10)
            telemetry.instruments.dropped(7)
        pushed, _ = collector.metrics()
    assert len(collector.received["/v1/metrics"]) >= 2
    [point] = pushed["turnout.records.dropped"].sum.data_points
    assert point.as_int == 7


def test_a_sampled_request_arrives_as_a_tree_and_the_others_do_not():
    with Collector() as collector:
        with open_telemetry(otlp_endpoint=collector.url, export_interval=60, sample=0.0) as telemetry:
            for flags in ("01", "00"):
                trace = telemetry.tracer.begin(f"00-{TRACE}-{SPAN}-{flags}", "vendor=1")
                trace.stage(names.PARSE)
                sent = trace.attempt("small-0")
                telemetry.request(a_record(), trace)
        spans = {span.name: span for span in collector.spans()}
    assert set(spans) == {"chat auto", "parse", "upstream", "first token", "decode"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert spans["chat auto"].parent_span_id.hex() == SPAN
    assert spans["chat auto"].trace_state == "vendor=1"
    assert plain(spans["chat auto"].attributes)["turnout.pool"] == "small"
    assert spans["upstream"].parent_span_id == spans["chat auto"].span_id
    assert spans["upstream"].span_id.hex() not in sent["traceparent"]  # that was the unsampled one's
    assert sent["traceparent"].endswith("-00")


def test_headers_and_attributes_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    with Collector() as collector:
        with open_telemetry(otlp_endpoint=collector.url + "/", export_interval=60) as telemetry:
            some_requests(telemetry)
        _, resource = collector.metrics()
    assert resource["deployment.environment.name"] == "test"
    assert {name.lower(): value for name, value in collector.headers[0].items()}["x-tenant"] == "blue"


@pytest.mark.parametrize("status", [400, 500])
def test_a_collector_that_refuses_harms_nobody(status, caplog):
    with (
        Collector(status) as collector,
        open_telemetry(otlp_endpoint=collector.url, export_interval=60) as telemetry,
    ):
        some_requests(telemetry)
        trace = telemetry.tracer.begin(f"00-{TRACE}-{SPAN}-01")
        telemetry.request(a_record(), trace)
    assert "could not be pushed" in caplog.text


def test_a_collector_that_is_not_there_holds_nothing_up_for_long(monkeypatch):
    monkeypatch.setattr("telemetry.otlp.PATIENCE", 0.1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and never listening: refused
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with open_telemetry(otlp_endpoint=endpoint, export_interval=60) as telemetry:
            telemetry.request(a_record(), telemetry.tracer.begin(f"00-{TRACE}-{SPAN}-01"))
            begun = time.monotonic()
    assert time.monotonic() - begun < 5  # one push, left alone, would try for that long
    for thread in threading.enumerate():
        if thread.name == "turnout-otlp":
            thread.join(10)
    assert "turnout-otlp" not in {thread.name for thread in threading.enumerate()}


def test_a_number_that_cannot_be_read_does_not_end_the_pushing(caplog):
    fails = [True]

    def read():
        if fails.pop() if fails else False:
            raise RuntimeError("no such file")
        return {(): 5}

    with Collector() as collector:
        with open_telemetry(otlp_endpoint=collector.url, export_interval=0.02) as telemetry:
            telemetry.instruments.watch(names.DESCRIPTORS, read)
            assert collector.arrived.wait(10)
        assert collector.metrics()[0]["process.unix.file_descriptor.count"].gauge.data_points[0].as_int == 5
