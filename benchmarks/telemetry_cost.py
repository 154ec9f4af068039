"""What telemetry costs a finished request, in microseconds of CPU; with OpenTelemetry's own instruments beside it.

python benchmarks/telemetry_cost.py [--json]
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan

from telemetry import names
from telemetry.logs import json_logs
from telemetry.record import RequestRecord
from telemetry.setup import Telemetry, open_telemetry
from telemetry.spans import Tracer
from telemetry.trace import Trace

BUDGET = 15.0  # microseconds for one record into all its metrics

RECORD = RequestRecord(
    id="018f2c6e-0001",
    at=1_700_000_000.0,
    operation="chat",
    caller="dev",
    model="auto",
    pool="small",
    replica="small-0",
    route="gain=0.23",
    form="lossless",
    prompt_bytes=1200,
    sent_bytes=1000,
    prompt_tokens=260,
    cached_tokens=200,
    completion_tokens=64,
    prefix_hit=0.8,
    queued=0.004,
    decided=0.0003,
    ttft=0.12,
    tpot=0.018,
    duration=1.3,
    traceparent=f"00-{'a' * 32}-{'b' * 16}-00",
)
SAMPLED = f"00-{'a' * 32}-{'b' * 16}-01"


def cost(step: Callable[[], object], times: int = 30_000, rounds: int = 5) -> float:
    """Microseconds of CPU of one step: the least of several rounds."""
    least = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(times):
            step()
        least = min(least, time.process_time() - begun)
    return least / times * 1e6


class Nowhere:
    def on_end(self, span: ReadableSpan) -> None: ...


def traced(tracer: Tracer, header: str | None) -> Trace:
    trace = tracer.begin(header)
    for name in (names.AUTHENTICATE, names.PARSE, names.ADMIT, names.FACTS, names.DECIDE, names.QUEUE):
        trace.stage(name)
    trace.attempt("small-0")
    tracer.end(trace, RECORD)
    return trace


def opentelemetry_step() -> Callable[[], None]:
    """The five GenAI observations of one request with the SDK's instruments and attribute dictionaries."""
    meter = MeterProvider([InMemoryMetricReader()]).get_meter("benchmark")
    made = [meter.create_histogram(metric.name) for metric in names.METRICS[:4]]
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "auto", "turnout.pool": "small"}

    def step() -> None:
        made[0].record(1.3, dict(attributes))
        made[1].record(0.12, dict(attributes))
        made[2].record(0.018, dict(attributes))
        made[3].record(260, {**attributes, "gen_ai.token.type": "input"})
        made[3].record(64, {**attributes, "gen_ai.token.type": "output"})

    return step


def figures(telemetry: Telemetry) -> dict[str, float]:
    spans = Tracer(
        sample=1.0,
        sink=Nowhere(),
        resource=telemetry.tracer._resource,  # noqa: SLF001 - a benchmark of its parts
        random=telemetry.tracer._random,  # noqa: SLF001
        clock=time.monotonic,
        wall=time.time,
    )
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, json_logs("info", nowhere):
        written = cost(lambda: telemetry.access.tell(RECORD, 1.7e9))
        whole = cost(lambda: telemetry.request(RECORD, traced(telemetry.tracer, None)))
    return {
        "metrics_us": cost(lambda: telemetry.instruments.request(RECORD)),
        "window_us": cost(lambda: telemetry.window.request(RECORD, 1.7e9)),
        "access_line_us": written,
        "trace_not_sampled_us": cost(lambda: traced(telemetry.tracer, None)),
        "trace_sampled_us": cost(lambda: traced(spans, SAMPLED), times=2_000),
        "all_not_sampled_us": whole,
        "opentelemetry_five_observations_us": cost(opentelemetry_step(), times=5_000),
        "exposition_us": cost(telemetry.exposition, times=100),
        "snapshot_us": cost(lambda: telemetry.window.snapshot(1.7e9), times=100),
    }


def main() -> None:
    with open_telemetry() as telemetry:
        measured = {name: round(value, 2) for name, value in figures(telemetry).items()}
    if "--json" in sys.argv:
        print(json.dumps(measured))
        return
    for name, value in measured.items():
        print(f"{name.removesuffix('_us').replace('_', ' '):36} {value:10.2f} us")
    print(f"{'budget of metrics and window':36} {BUDGET:10.2f} us")


if __name__ == "__main__":
    main()
