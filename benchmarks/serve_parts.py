"""What each part of the request path costs by itself: CPU microseconds, best of several runs, on bodies of three sizes.

python benchmarks/serve_parts.py [--json]
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial

from backends.types import Replica, ReplicaId
from gateway.serve.admit import Admission
from gateway.serve.authenticate import authenticate, digest
from gateway.serve.body import Body
from gateway.serve.breaker import Breaker
from gateway.serve.catalog import Caller, Catalog, Live, Pool
from gateway.serve.compress.lossless import examine
from gateway.serve.decide import Facts, Form, decide
from gateway.serve.lease import lease
from gateway.serve.prefix import PrefixIndex
from gateway.serve.queue import PoolQueue

RUNS = 7
REPLICAS = tuple(Replica(ReplicaId(f"r{number}"), "", "m", slots=4) for number in range(8))
POOL = Pool("small", replicas=REPLICAS)
CATALOG = Catalog(
    callers={digest("sk-key"): Caller("a", concurrency=100, requests_per_minute=10**9, tokens_per_minute=10**12)},
    pools={"small": POOL},
)


def cost(work: Callable[[], object], times: int) -> float:
    """CPU microseconds of one call: the best run of several, since the machine may do other things."""
    best = float("inf")
    for _ in range(RUNS):
        began = time.process_time()
        for _ in range(times):
            work()
        best = min(best, time.process_time() - began)
    return best / times * 1e6


def prose(size: int, line_end: str = "") -> str:
    """Words in lines and paragraphs; the same for the same size."""
    draw = random.Random(size)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(500)]
    text: list[str] = []
    while sum(map(len, text)) < size:
        lines = [" ".join(draw.choices(words, k=12)) + line_end for _ in range(5)]
        text.append("\n".join(lines) + "\n\n")
    return "".join(text)[:size]


def chat(content: str, role: str = "user") -> bytes:
    return json.dumps({"model": "small", "stream": True, "messages": [{"role": role, "content": content}]}).encode()


def of_bodies() -> dict[str, float]:
    results: dict[str, float] = {}
    index = PrefixIndex()
    for name, size, times in (("300 B", 230, 2000), ("32 kB", 32_700, 300), ("480 kB", 480_000, 10)):
        raw = chat(prose(size))
        body = Body.parse(raw, "chat")
        chain = index.chain(b"m", body.prompt_text)
        for replica in REPLICAS:
            index.record(replica, chain)
        results |= {
            f"body.parse {name}": cost(partial(Body.parse, raw, "chat"), times),
            f"body.shaped {name}": cost(partial(body.shaped, model="served"), times),
            f"lossless, nothing to gain {name}": cost(partial(examine, body), times),
            f"prefix.chain {name}": cost(partial(index.chain, b"m", body.prompt_text), times),
            f"prefix.hits, 8 replicas {name}": cost(partial(index.hits, REPLICAS, chain), times),
            f"prefix.record {name}": cost(partial(index.record, REPLICAS[0], chain), times),
        }
    rows = [{"id": number, "name": "a name", "text": 'say "hi"', "of": [1.50, None]} for number in range(2000)]
    pretty = chat(json.dumps(rows, indent=2), "tool")
    results[f"lossless, pretty JSON {len(pretty) // 1000} kB"] = cost(partial(examine, Body.parse(pretty, "chat")), 5)
    loose = chat(prose(480_000, "  "), "tool")
    results["lossless, loose text 480 kB"] = cost(partial(examine, Body.parse(loose, "chat")), 5)
    return results


def of_requests() -> dict[str, float]:
    live = Live()
    admission = Admission(time.monotonic)
    breaker = Breaker(time.monotonic, live.blocked)
    queue = PoolQueue(lambda: CATALOG, live, time.monotonic)
    caller = next(iter(CATALOG.callers.values()))
    facts = Facts((Form("as is", 300),), {"small": 1.0})

    def admitted() -> None:
        with admission.admit(caller, 100) as one:
            one.settle(50)

    def leased() -> None:
        with lease(live, REPLICAS[0]):
            pass

    def attempted() -> None:
        breaker.blocked()
        with breaker.attempt(REPLICAS[0]):
            breaker.worked(REPLICAS[0])

    async def turns(times: int) -> None:
        for _ in range(times):
            async with queue.turn(POOL, 1e12):
                pass

    return {
        "authenticate": cost(partial(authenticate, CATALOG, "Bearer sk-key"), 5000),
        "admit and settle": cost(admitted, 5000),
        "decide, 8 replicas": cost(partial(decide, facts, (POOL,), live, 0.0), 1000),
        "queue.turn, a slot is free": cost(lambda: asyncio.run(turns(2000)), 1) / 2000,
        "lease": cost(leased, 5000),
        "breaker": cost(attempted, 5000),
    }


def main() -> None:
    results = {name: round(value, 1) for name, value in (of_bodies() | of_requests()).items()}
    if "--json" in sys.argv[1:]:
        print(json.dumps(results, indent=2))
        return
    for name, value in results.items():
        print(f"{name:40} {value:10.1f} us")


if __name__ == "__main__":
    main()
