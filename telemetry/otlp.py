"""Pushing metrics and spans to an OpenTelemetry collector over OTLP/HTTP."""

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from telemetry import names
from telemetry.aggregate import Buckets, Number
from telemetry.instruments import Collected, Instruments

TIMEOUT = 5.0  # seconds for one push, retries included
PATIENCE = 2.0  # seconds that the last push may hold up the end of the process

Now = Callable[[], float]  # Unix time, seconds


class Ends(Protocol):
    """What can be shut down; the SDK leaves these methods untyped."""

    def shutdown(self) -> None: ...


class Exports(Ends, Protocol):
    def export(self, metrics_data: MetricsData) -> MetricExportResult: ...


_logger = logging.getLogger("turnout.telemetry")


@contextmanager
def span_processor(endpoint: str) -> Generator[BatchSpanProcessor]:
    """Takes spans and sends them in batches, from a thread of its own. `endpoint`: scheme://host:port."""
    exporter = OTLPSpanExporter(endpoint=_path(endpoint, "traces"), timeout=TIMEOUT)
    processor = BatchSpanProcessor(exporter)
    ends: Ends = processor
    try:
        yield processor
    finally:
        # A collector that does not answer must not hold up the end: its exporter gives up when it is shut down.
        patience = threading.Timer(PATIENCE, exporter.shutdown)
        patience.start()
        ends.shutdown()  # sends what is left
        patience.cancel()


@contextmanager
def pushing(instruments: Instruments, endpoint: str, interval: float, resource: Resource, now: Now) -> Generator[None]:
    """Push all metrics every `interval` seconds, and once more at the end."""
    exporter = _metric_exporter(endpoint)
    started = now()
    done = threading.Event()

    def run() -> None:
        while True:
            last = done.wait(interval)
            _export(exporter, instruments, resource, started, now())
            if last:
                return

    thread = threading.Thread(target=run, name="turnout-otlp", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(PATIENCE)
        exporter.shutdown()


def _metric_exporter(endpoint: str) -> Exports:
    return OTLPMetricExporter(endpoint=_path(endpoint, "metrics"), timeout=TIMEOUT)


def _export(exporter: Exports, instruments: Instruments, resource: Resource, started: float, now: float) -> None:
    """One push. A failure is told and forgotten: the sums are cumulative, so the next push makes up for it."""
    try:
        if exporter.export(metrics_data(instruments, resource, started, now)) is not MetricExportResult.SUCCESS:
            _logger.warning("The metrics could not be pushed; the next push tells them again.")
    except Exception:
        # A watched number that fails must not end the thread that pushes.
        _logger.exception("The metrics could not be read for a push.")


def metrics_data(instruments: Instruments, resource: Resource, started: float, now: float) -> MetricsData:
    """Everything the instruments hold, in the SDK's form: cumulative since `started`. Times: Unix seconds."""
    span = (round(started * 1e9), round(now * 1e9))
    metrics = [_metric(collected, span) for collected in instruments.collect() if collected[1]]
    scope = ScopeMetrics(InstrumentationScope(names.SCOPE), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(collected: Collected, span: tuple[int, int]) -> Metric:
    metric, series = collected
    data: Sum | Gauge | Histogram
    if metric.kind == "histogram":
        data = Histogram(_histograms(series, span), AggregationTemporality.CUMULATIVE)
    elif metric.kind == "counter":
        data = Sum(_numbers(series, span), AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(_numbers(series, span))
    return Metric(metric.name, metric.description, metric.unit, data)


Series = Sequence[tuple[Mapping[str, str], Number | Buckets]]


def _numbers(series: Series, span: tuple[int, int]) -> list[NumberDataPoint]:
    return [
        NumberDataPoint(_typed(labels), span[0], span[1], cell.value)
        for labels, cell in series
        if isinstance(cell, Number)
    ]


def _histograms(series: Series, span: tuple[int, int]) -> list[HistogramDataPoint]:
    return [_histogram(labels, cell, span) for labels, cell in series if isinstance(cell, Buckets)]


def _histogram(labels: Mapping[str, str], cell: Buckets, span: tuple[int, int]) -> HistogramDataPoint:
    counts = list(cell.counts)
    return HistogramDataPoint(
        attributes=_typed(labels),
        start_time_unix_nano=span[0],
        time_unix_nano=span[1],
        count=sum(counts),
        sum=cell.total,
        bucket_counts=counts,
        explicit_bounds=cell.bounds,
        # Not kept: over the life of a process the extremes tell nothing. The encoder leaves out what is None.
        min=cast("float", None),
        max=cast("float", None),
    )


def _typed(labels: Mapping[str, str]) -> dict[str, str | int]:
    """Attributes with the types that the conventions give them: a status is a number."""
    return {name: int(value) if name == names.STATUS_CODE else value for name, value in labels.items()}


def _path(endpoint: str, signal: str) -> str:
    return f"{endpoint.rstrip('/')}/v1/{signal}"
