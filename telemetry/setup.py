"""Telemetry as one thing that is opened and closed: metrics, the rolling window, traces, and where they go."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from logging import getLogger
from random import Random

import msgspec
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource

from telemetry import names
from telemetry.aggregate import Labels
from telemetry.exposition import exposition
from telemetry.instruments import Instruments
from telemetry.logs import ACCESS, Access
from telemetry.process import watch_process
from telemetry.record import RequestRecord
from telemetry.spans import Sink, Tracer
from telemetry.trace import Trace
from telemetry.window import Rates, Window


class Telemetry(msgspec.Struct, frozen=True):
    """All that a process tells of itself."""

    instruments: Instruments
    window: Window
    tracer: Tracer
    target: Mapping[str, str]  # resource attributes
    now: Callable[[], float]  # Unix time, seconds
    access: Access

    def request(self, record: RequestRecord, trace: Trace | None = None) -> None:
        """A request is done: count it, log it, and hand over its spans if it is sampled."""
        self.instruments.request(record)
        now = self.now()
        self.window.request(record, now)
        self.access.tell(record, now)
        if trace is not None:
            self.tracer.end(trace, record)

    def exposition(self) -> bytes:
        """The body of `GET /metrics`; its type is `telemetry.exposition.CONTENT_TYPE`."""
        return exposition(self.instruments, self.target)


@contextmanager
def open_telemetry(
    *,
    otlp_endpoint: str | None = None,
    export_interval: float = 15.0,
    sample: float = 0.01,
    service: str = "turnout",
    instance: str = "",
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> Generator[Telemetry]:
    """Open telemetry for one process; leaving sends what is left.

    `otlp_endpoint`: scheme://host:port of a collector, None to push nothing (`OTEL_EXPORTER_OTLP_HEADERS` adds headers,
    `OTEL_RESOURCE_ATTRIBUTES` attributes). `sample`: share of requests with spans; without an endpoint none are made.
    `clock` is monotonic and must be the one that the meters read.
    """
    attributes = {SERVICE_NAME: service, SERVICE_VERSION: version("turnout"), SERVICE_INSTANCE_ID: instance}
    resource = Resource.create({name: value for name, value in attributes.items() if value})
    instruments, window = Instruments(), Window(now())
    watch_process(instruments)
    _watch_throughput(instruments, window, now)
    with ExitStack() as held:
        sink: Sink | None = None
        if otlp_endpoint is not None:
            from telemetry import otlp  # noqa: PLC0415 - half a second and 5 MB, only where it is used

            sink = held.enter_context(otlp.span_processor(otlp_endpoint))
            held.enter_context(otlp.pushing(instruments, otlp_endpoint, export_interval, resource, now))
        random = Random().getrandbits  # noqa: S311 - identifiers, not secrets
        tracer = Tracer(sample=sample, sink=sink, resource=resource, random=random, clock=clock, wall=now)
        target = {name: str(value) for name, value in resource.attributes.items()}
        yield Telemetry(instruments, window, tracer, target, now, Access(getLogger(ACCESS)))


def _watch_throughput(instruments: Instruments, window: Window, now: Callable[[], float]) -> None:
    def read(rate: Callable[[Rates], float | None]) -> Mapping[Labels, float]:
        pools = window.span(now(), 60).pools
        return {(pool,): value for pool, rates in pools.items() if (value := rate(rates)) is not None}

    instruments.watch(names.SYSTEM_TOKENS, lambda: read(lambda rates: rates.output_tokens))
    instruments.watch(names.USER_TOKENS, lambda: read(lambda rates: rates.user_tokens))
