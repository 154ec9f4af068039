"""What the gateway adds: CPU microseconds a request and milliseconds of latency, beside the floor of an empty route.

python benchmarks/gateway_overhead.py [--json] [--quick] [--runs 3] [--seconds 1.0]

The upstream is the simulator's fastest mode (fixed bytes). The program under measurement has one core, the upstream and
the load share another. CPU is user + system of the program's process tree, from /proc, over the requests that it
answered: that hardly moves with noise. Each figure is the median of the runs. `added` is the latency
through the gateway minus the latency of the upstream asked directly, at the same rate: half of what the gateway can do.
Prompts differ from their first word on, 64 of them in turn. The whole takes about a minute and a quarter at most.
"""

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop
from load import Outcome, closed_loop, open_loop, payloads
from programs import Program, cores, free_port, python, running

CHUNKS = 64
PACE = 0.01  # seconds between the chunks of a paced stream
IDLE = 2.0  # seconds of doing nothing that are measured
ROUTED = ("small", "large")  # the pools behind `auto`, each with its own upstream


class Work(msgspec.Struct, frozen=True):
    """One kind of load. `name` is its figure in the output."""

    name: str
    says: str
    model: str
    size: int = 300  # bytes of the request's JSON
    stream: bool = False
    connections: int = 32
    chunks: int = 0  # pieces the upstream sends for each request, where the figure is one of them

    @property
    def tokens(self) -> int:
        return CHUNKS if self.stream else 8


WORK = (
    Work("plain_us", "300-byte chat, plain answer, pool named", "small"),
    Work("auto_us", "the same with `auto`", "auto"),
    Work("prompt_32k_us", "32 kB prompt, plain answer, `auto`", "auto", size=32_000, connections=16),
    Work("stream_burst_us", f"{CHUNKS}-chunk streamed answer, all at once", "small", stream=True, connections=16),
    # role, tokens, usage, [DONE]: what the upstream sends
    Work("stream_paced_chunk_us", "streamed, one chunk each 10 ms, by chunk", "paced", stream=True, chunks=CHUNKS + 3),
)


class Plan(msgspec.Struct, frozen=True):
    runs: int
    seconds: float


class Figures(msgspec.Struct):
    """What was measured of one program."""

    us: dict[str, float] = {}
    rate: dict[str, float] = {}
    rss_mb: float = 0.0
    rss_idle_mb: float = 0.0
    idle_percent: float = 0.0  # of a core, with no request at all: it is in the other figures too
    errors: dict[str, object] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    parser.add_argument("--quick", action="store_true", help="one run of 0.7 s each: to see that it works")
    given = parser.parse_args()
    plan = Plan(1, 0.7) if given.quick else Plan(given.runs, given.seconds)
    measured, others = cores()
    if others is not None:
        os.sched_setaffinity(0, {others})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = _upstreams(stack, folder, others)
        argv = python(str(Path(__file__).with_name("floor.py")), "--chunks", str(CHUNKS))
        with running(argv, core=measured, log=folder / "floor.log") as program:
            floor = _measure(program, plan)
        key = secrets.token_urlsafe(16)
        gateway = stack.enter_context(_gateway(folder, upstream, key, measured))
        figures = _measure(gateway, plan, key)
        added = _latency(gateway, upstream["small"], key, figures.rate["plain_us"] / 2, plan)
        figures.rss_mb = gateway.memory()
    report = {
        **figures.us,
        **added,
        "rss_mb": figures.rss_mb,
        "rss_idle_mb": figures.rss_idle_mb,
        "idle_percent": figures.idle_percent,
    }
    rounded = {name: round(value, 3 if name.endswith("_ms") else 1) for name, value in report.items()}
    below = {
        name: round(value, 1)
        for name, value in {**floor.us, "rss_mb": floor.rss_mb, "idle_percent": floor.idle_percent}.items()
    }
    rates = {name.removesuffix("_us"): round(value) for name, value in figures.rate.items()}
    if given.json:
        print(json.dumps({**rounded, "floor": below, "requests_per_second": rates}))
    else:
        _table(rounded, below, rates)
    failed = {**floor.errors, **figures.errors}
    if failed:
        print(f"Not every request was answered: {failed}", file=sys.stderr)
        sys.exit(1)


def _upstreams(stack: ExitStack, folder: Path, core: int | None) -> dict[str, str]:
    """Simulators by the pool they stand behind."""
    urls: dict[str, str] = {}
    for pool in (*ROUTED, "paced"):
        pace = ("--chunk-interval", str(PACE)) if pool == "paced" else ()
        argv = python("-m", "engines.sim", "--fastest", "--model", "sim", "--chunks", str(CHUNKS), *pace)
        urls[pool] = stack.enter_context(running(argv, core=core, log=folder / f"{pool}.log")).url
    return urls


def _gateway(folder: Path, upstream: Mapping[str, str], key: str, core: int | None) -> AbstractContextManager[Program]:
    port = free_port()
    pools = [
        f'[pools.{pool}]\nurl = "{url}"\nmodel = "sim"\nslots = 256\ntier = "{"large" if pool == "large" else "small"}"'
        for pool, url in upstream.items()
    ]
    config = folder / "turnout.toml"
    parts = [
        f'data = "{folder}"',
        f"[gateway]\nport = {port}",
        f'[[keys]]\nname = "bench"\nkey = "{key}"',
        *pools,
        f"[aliases.auto]\npools = {json.dumps(ROUTED)}",
    ]
    config.write_text("\n".join(parts))
    argv = python("-m", "gateway.cli", "gateway", "--config", str(config))
    return running(argv, core=core, log=folder / "gateway.log", url=f"http://127.0.0.1:{port}", path="/health/ready")


def _measure(program: Program, plan: Plan, key: str | None = None) -> Figures:
    before = program.cpu()
    time.sleep(IDLE)
    figures = Figures(rss_idle_mb=program.memory(), idle_percent=(program.cpu() - before) / IDLE * 100)
    for work in WORK:
        requests = payloads(
            urlsplit(program.url).netloc,
            model=work.model,
            size=work.size,
            tokens=work.tokens,
            stream=work.stream,
            key=key,
        )
        uvloop.run(closed_loop(program.url, requests, connections=work.connections, seconds=0.3))  # to warm up
        costs: list[float] = []
        rates: list[float] = []
        for _ in range(plan.runs):
            before = program.cpu()
            outcome = uvloop.run(closed_loop(program.url, requests, connections=work.connections, seconds=plan.seconds))
            spent = program.cpu() - before
            _check(outcome, work.name, figures)
            costs.append(spent / max(outcome.done * (work.chunks or 1), 1) * 1e6)
            rates.append(outcome.rate)
        figures.us[work.name] = statistics.median(costs)
        figures.rate[work.name] = statistics.median(rates)
    figures.rss_mb = program.memory()
    return figures


def _latency(gateway: Program, direct: str, key: str, rate: float, plan: Plan) -> dict[str, float]:
    """Open loop at `rate`, through the gateway and straight to the upstream, in turn."""
    through: list[Outcome] = []
    straight: list[Outcome] = []
    work = WORK[0]
    for _ in range(plan.runs):
        for url, model, secret, outcomes in (
            (gateway.url, work.model, key, through),
            (direct, "sim", None, straight),
        ):
            requests = payloads(urlsplit(url).netloc, model=model, size=work.size, tokens=work.tokens, key=secret)
            outcomes.append(uvloop.run(open_loop(url, requests, rate=rate, connections=64, seconds=plan.seconds)))

    def added(share: float) -> float:
        ours, theirs = (statistics.median(one.percentile(share) for one in each) for each in (through, straight))
        return (ours - theirs) * 1000

    return {"added_p50_ms": added(0.5), "added_p99_ms": added(0.99)}


def _check(outcome: Outcome, name: str, figures: Figures) -> None:
    if outcome.failed or not outcome.done:
        figures.errors[name] = outcome.summary()


def _table(figures: Mapping[str, float], floor: Mapping[str, float], rates: Mapping[str, float]) -> None:
    print(f"{'':44}{'gateway':>10}{'floor':>10}{'answers/s':>11}")
    for work in WORK:
        rate = rates[work.name.removesuffix("_us")]
        print(f"{work.says:44}{figures[work.name]:>7.1f} us{floor[work.name]:>7.1f} us{rate:>11}")
    for share in ("p50", "p99"):
        print(f"{f'added latency at half load, {share}':44}{figures[f'added_{share}_ms']:>7.3f} ms")
    memory = f"{figures['rss_mb']:>7.1f} MB{floor['rss_mb']:>7.1f} MB"
    print(f"{'resident memory after the load':44}{memory}  ({figures['rss_idle_mb']} MB before)")
    print(f"{'CPU while nothing is asked':44}{figures['idle_percent']:>7.1f} % {floor['idle_percent']:>8.1f} %")


if __name__ == "__main__":
    main()
