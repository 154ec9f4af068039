"""CPU a request of the HTTP clients under the data plane: ours (httptools) and httpx, against a raw local server.

    python benchmarks/upstream_client.py [--requests 4000] [--json]

Microseconds of user + system time of the client process, from /proc/self/stat, which another process on the same core
does not disturb. The server runs in a process of its own. `plain`: a 300-byte answer with a content-length; `stream`:
64 events sent at once; `backend`: the same through `OpenAIHttp` (sieve and meter). `paced`: 64 events, one each 5 ms.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import uvloop

from backends.httpx_upstream import HttpxUpstream
from backends.openai_http import OpenAIHttp
from backends.transport import Upstream
from backends.types import Access, Call, Replica, ReplicaId
from backends.wire import WireUpstream
from telemetry.usage import Meter

BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"x" * 240)
ANSWER = b'{"id":"1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"%s"}}]}'
CHOICE = b'{"index":0,"delta":{"content":"w "},"finish_reason":null}'
EVENT = b'data: {"id":"1","object":"chat.completion.chunk","choices":[%s]}\n\n' % CHOICE
LAST = b'data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKS = [*(b"%x\r\n%s\r\n" % (len(event), event) for event in [*[EVENT] * 63, LAST]), b"0\r\n\r\n"]
TICK = 1_000_000 / os.sysconf("SC_CLK_TCK")


class Server(asyncio.Protocol):
    """Answers whatever comes: a stream where the request asks for one."""

    def connection_made(self, transport):
        self.transport = transport
        self.seen = b""
        plain = ANSWER % (b"y" * 180)
        self.plain = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
            len(plain),
            plain,
        )
        self.stream = STREAM_HEAD + b"".join(CHUNKS)

    def data_received(self, data):
        self.seen += data
        head, found, rest = self.seen.partition(b"\r\n\r\n")
        if not found:
            return
        size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(rest) >= size:
            self.seen = rest[size:]
            if b'"pace":true' in rest[:size]:
                self.pace([STREAM_HEAD, *CHUNKS])
            else:
                self.transport.write(self.stream if b'"stream":true' in rest[:size] else self.plain)

    def pace(self, pieces):
        self.transport.write(pieces[0])
        if len(pieces) > 1:
            asyncio.get_running_loop().call_later(0.005, self.pace, pieces[1:])


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def cpu() -> float:
    """Microseconds this process has used so far."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


async def bare(upstream: Upstream, url: str, body: bytes) -> None:
    post = upstream.post(
        f"{url}/v1/chat/completions",
        {"content-type": "application/json"},
        body,
        access=Access(),
        first_byte_timeout=10,
        idle_timeout=10,
    )
    async with post as reply:
        async for _ in reply.body:
            pass


async def whole(backend: OpenAIHttp, url: str, *, stream: bool, pace: bool = False) -> None:
    meter = Meter(time.monotonic)
    body = BODY[:-1] + b',"pace":true}' if pace else BODY
    async with backend.send(Replica(ReplicaId("r"), url, "m"), Call("chat", body, stream=stream), meter) as reply:
        async for _ in reply.body:
            pass
    assert meter.finished


async def measure(work, requests: int, *, at_once: int = 8, warm: int = 200) -> float:
    async def run(count: int) -> None:
        for _ in range(count):
            await work()

    await run(warm)
    before = cpu()
    await asyncio.gather(*(run(requests // at_once) for _ in range(at_once)))
    return round((cpu() - before) / (requests // at_once * at_once), 1)


async def bench(url: str, requests: int) -> dict[str, float]:
    streamed = BODY[:-1] + b',"stream":true}'
    figures = {}
    for name, upstream, count in (
        ("wire", WireUpstream(), requests),
        ("httpx", HttpxUpstream(), max(400, requests // 8)),
    ):
        backend = OpenAIHttp(upstream)
        figures[f"{name}_plain_us"] = await measure(lambda u=upstream: bare(u, url, BODY), count)
        figures[f"{name}_stream_us"] = await measure(lambda u=upstream: bare(u, url, streamed), count)
        figures[f"{name}_backend_plain_us"] = await measure(lambda b=backend: whole(b, url, stream=False), count)
        figures[f"{name}_backend_stream_us"] = await measure(lambda b=backend: whole(b, url, stream=True), count)
        paced = await measure(lambda b=backend: whole(b, url, stream=True, pace=True), count // 20, at_once=40, warm=1)
        figures[f"{name}_backend_paced_chunk_us"] = round(paced / 64, 1)
        await upstream.aclose()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve())
        return
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            figures = uvloop.run(bench(url, options.requests))
        finally:
            server.terminate()
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:28}{value:10.1f}")


if __name__ == "__main__":
    main()
