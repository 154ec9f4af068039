"""A load generator that costs little itself: raw asyncio and httptools, closed loop or open loop.

python benchmarks/load.py URL [--connections 32] [--seconds 3] [--rate R] [--stream] [--bytes 300] [--tokens 8]
"""

import argparse
import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

TICK = 0.001  # seconds: the grain of an event loop's timers
GRACE = 10.0  # seconds that what is under way gets at the end


class Outcome(msgspec.Struct):
    """What came of a load. Latencies in seconds, from the last byte sent to the last received."""

    seconds: float = 0.0
    done: int = 0
    chunks: int = 0  # pieces of body that the HTTP parser saw
    received: int = 0  # bytes of body
    late: int = 0  # open loop: requests for which no connection was free at their time
    reconnects: int = 0
    latencies: list[float] = []
    first_bytes: list[float] = []
    statuses: Counter[int] = msgspec.field(default_factory=Counter)
    errors: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def rate(self) -> float:
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def failed(self) -> int:
        return self.errors.total() + sum(count for status, count in self.statuses.items() if status >= 400)

    def percentile(self, share: float) -> float:
        """Of the latencies, in seconds."""
        ordered = sorted(self.latencies)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")

    def summary(self) -> dict[str, object]:
        return {
            "requests": self.done,
            "per_second": round(self.rate, 1),
            "p50_ms": round(self.percentile(0.5) * 1000, 3),
            "p99_ms": round(self.percentile(0.99) * 1000, 3),
            "chunks": self.chunks,
            "reconnects": self.reconnects,
            "late": self.late,
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "errors": dict(self.errors),
        }


def payloads(
    host: str, *, model: str, size: int, tokens: int, stream: bool = False, key: str | None = None, count: int = 64
) -> list[bytes]:
    """`count` whole HTTP requests for chat, all different from the first word on, each with a body of `size` bytes."""
    rng = random.Random(size)
    words = " ".join(rng.choices(_WORDS, k=size // 2))
    made: list[bytes] = []
    for number in range(count):
        body = {"model": model, "messages": [{"role": "user", "content": ""}], "max_tokens": tokens, "stream": stream}
        room = max(size - len(msgspec.json.encode(body)), 8)
        body["messages"] = [{"role": "user", "content": f"{number:04d} {words[number:]}"[:room]}]
        data = msgspec.json.encode(body)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        if key:
            head += f"authorization: Bearer {key}\r\n"
        made.append(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return made


_WORDS = (
    "please",
    "explain",
    "why",
    "the",
    "sum",
    "of",
    "two",
    "even",
    "numbers",
    "is",
    "always",
    "even",
    "and",
    "show",
    "it",
)


class _Client(asyncio.Protocol):
    """One keep-alive connection; `finished` is called after each answer and may send the next request."""

    def __init__(self, outcome: Outcome, finished: Callable[["_Client"], None]) -> None:
        self._outcome = outcome
        self._finished = finished
        self._sent = 0.0
        self._first = 0.0
        self.busy = False
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)

    def send(self, request: bytes) -> None:
        self.busy = True
        self._first = 0.0
        self._transport.write(request)
        self._sent = perf_counter()

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._first:
            self._first = perf_counter()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._outcome.chunks += 1
        self._outcome.received += len(body)

    def on_message_complete(self) -> None:
        outcome = self._outcome
        outcome.done += 1
        outcome.statuses[self._parser.get_status_code()] += 1
        outcome.latencies.append(perf_counter() - self._sent)
        outcome.first_bytes.append(self._first - self._sent)
        self.busy = False
        if self._parser.should_keep_alive():
            # not from inside the parser: it must finish this answer first
            asyncio.get_running_loop().call_soon(self._finished, self)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.busy:
            self._outcome.errors[repr(exc) if exc else "closed in the middle of an answer"] += 1
        if not self.gone.done():
            self.gone.set_result(None)


async def closed_loop(url: str, requests: Sequence[bytes], *, connections: int, seconds: float) -> Outcome:
    """Each connection sends its next request when the last answer has come, for `seconds`; then all are waited for."""
    outcome = Outcome()
    loop = asyncio.get_running_loop()
    at = urlsplit(url)
    turn = 0
    end = loop.time() + seconds

    def next_request(client: _Client) -> None:
        nonlocal turn
        if loop.time() >= end:
            client.close()
            return
        turn += 1
        client.send(requests[turn % len(requests)])

    async def one() -> None:
        while loop.time() < end:
            _, client = await loop.create_connection(lambda: _Client(outcome, next_request), at.hostname, at.port)
            next_request(client)
            await client.gone
            outcome.reconnects += loop.time() < end

    begun = perf_counter()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds + GRACE):
            await asyncio.gather(*(one() for _ in range(connections)))
    outcome.seconds = perf_counter() - begun
    return outcome


async def open_loop(url: str, requests: Sequence[bytes], *, rate: float, connections: int, seconds: float) -> Outcome:
    """`rate` requests a second, evenly, whatever the answers do; in ticks of a millisecond."""
    outcome = Outcome()
    loop = asyncio.get_running_loop()
    at = urlsplit(url)
    free: list[_Client] = []
    clients: list[_Client] = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: _Client(outcome, free.append), at.hostname, at.port)
        clients.append(client)
    free.extend(clients)
    begun = loop.time()
    sent = 0
    while (now := loop.time()) < begun + seconds:
        for _ in range(int((now - begun) * rate) - sent):
            sent += 1
            if not free:
                outcome.late += 1
                continue
            free.pop().send(requests[sent % len(requests)])
        await asyncio.sleep(TICK)
    deadline = loop.time() + GRACE
    while any(client.busy for client in clients) and loop.time() < deadline:  # noqa: ASYNC110  once
        await asyncio.sleep(TICK)
    outcome.seconds = loop.time() - begun
    for client in clients:
        client.close()
    await asyncio.sleep(0)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rate", type=float, help="requests a second (open loop); without it: closed loop")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--bytes", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--model", default="sim")
    parser.add_argument("--key")
    given = parser.parse_args()
    requests = payloads(
        urlsplit(given.url).netloc,
        model=given.model,
        size=given.bytes,
        tokens=given.tokens,
        stream=given.stream,
        key=given.key,
    )
    how = {"connections": given.connections, "seconds": given.seconds}
    work = (
        open_loop(given.url, requests, rate=given.rate, **how)
        if given.rate
        else closed_loop(given.url, requests, **how)
    )
    print(json.dumps(uvloop.run(work).summary(), indent=1))


if __name__ == "__main__":
    main()
