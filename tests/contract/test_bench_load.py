"""The load generator against the simulator: it sends what it says and counts what came."""

import importlib.util
import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from engines.sim.fastest import serve_fastest
from engines.sim.options import Options
from tests.support.sim import sim


@pytest.fixture(scope="module")
def load():
    """benchmarks/load.py is a script, not a package."""
    path = Path(__file__).parents[2] / "benchmarks" / "load.py"
    spec = importlib.util.spec_from_file_location("load", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["load"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["load"]


def body_of(request):
    head, _, body = request.partition(b"\r\n\r\n")
    return head.decode(), msgspec.json.decode(body), len(body)


@pytest.mark.parametrize("size", [300, 32_000])
def test_requests_have_the_size_that_was_asked_for_and_differ_at_once(load, size):
    requests = load.payloads("h:1", model="m", size=size, tokens=8, stream=True, key="k", count=5)
    seen = [body_of(request) for request in requests]
    assert {length for _, _, length in seen} == {size}
    assert all(f"content-length: {size}" in head and "authorization: Bearer k" in head for head, _, _ in seen)
    assert len({body["messages"][0]["content"][:4] for _, body, _ in seen}) == 5
    assert seen[0][1]["stream"] is True


async def test_a_closed_loop_counts_every_answer(load):
    async with serve_fastest(Options()) as url:
        requests = load.payloads(urlsplit(url).netloc, model="sim", size=300, tokens=3)
        outcome = await load.closed_loop(url, requests, connections=3, seconds=0.2)
    assert outcome.done > 3
    assert outcome.statuses == {200: outcome.done}
    assert len(outcome.latencies) == outcome.done
    assert outcome.failed == 0
    assert outcome.percentile(0.5) <= outcome.percentile(0.99)


async def test_streams_are_counted_in_chunks(load):
    async with serve_fastest(Options()) as url:
        requests = load.payloads(urlsplit(url).netloc, model="sim", size=300, tokens=5, stream=True)
        outcome = await load.closed_loop(url, requests, connections=1, seconds=0.1)
    assert outcome.chunks == outcome.done * (5 + 3)  # role, usage and [DONE] beside the tokens


async def test_an_open_loop_keeps_its_rate(load):
    async with serve_fastest(Options()) as url:
        requests = load.payloads(urlsplit(url).netloc, model="sim", size=300, tokens=3)
        outcome = await load.open_loop(url, requests, rate=200, connections=8, seconds=0.3)
    assert 40 <= outcome.done + outcome.late <= 60
    assert outcome.failed == 0


async def test_errors_and_closed_connections_are_seen(load):
    async with sim(fault="503") as handle:
        requests = load.payloads("h", model="sim", size=300, tokens=3)
        refused = await load.closed_loop(handle.url, requests, connections=1, seconds=0.05)
    assert refused.failed == refused.done == refused.statuses[503] > 0
    async with sim(fault="cut:1") as handle:
        requests = load.payloads("h", model="sim", size=300, tokens=3, stream=True)
        broken = await load.closed_loop(handle.url, requests, connections=1, seconds=0.05)
    assert broken.errors.total() > 0
    assert broken.reconnects > 0


async def test_a_server_that_closes_after_each_answer_is_reconnected(load):
    async with sim(dialect="llamacpp") as handle:
        requests = load.payloads("h", model="sim", size=300, tokens=3, stream=True)
        outcome = await load.closed_loop(handle.url, requests, connections=1, seconds=0.2)
    assert outcome.reconnects > 0
    assert outcome.statuses[200] == outcome.done > 1
