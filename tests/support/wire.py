"""What the tests of the HTTP client share: asking, waiting, and servers that always say the same."""

import asyncio
import time
from collections.abc import Callable

from backends.keepalive import Stats
from backends.transport import RawReply, Upstream
from backends.types import Access
from tests.support.raw_server import STREAM_HEAD, Peer, Script, chunk

IDLE = Stats(open=1, idle=1, in_use=0)
NONE = Stats()


def post(upstream: Upstream, url: str, body: bytes = b"{}", *, first: float = 2.0, idle: float = 2.0, **headers: str):
    return upstream.post(f"{url}/v1/x", headers, body, access=Access(), first_byte_timeout=first, idle_timeout=idle)


async def whole(reply: RawReply) -> bytes:
    return b"".join([piece async for piece in reply.body])


async def read_into(got: bytearray, reply: RawReply) -> None:
    async for piece in reply.body:
        got += piece


async def ask(upstream: Upstream, url: str, **options: float) -> bytes:
    async with post(upstream, url, **options) as reply:  # type: ignore[arg-type]
        return await whole(reply)


async def settles(reached: Callable[[], bool], within: float = 1.0) -> float:
    """Seconds until `reached`; fails when it is not."""
    start = time.perf_counter()
    while not reached():
        assert time.perf_counter() - start < within, "did not settle"
        await asyncio.sleep(0.002)
    return time.perf_counter() - start


def says(data: bytes, *, cuts: tuple[int, ...] = ()) -> Script:
    """Answer every request with these bytes, cut where told."""

    async def script(peer: Peer) -> None:
        while await peer.request():
            for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
                await peer.send(data[start:end])
                if cuts:
                    await asyncio.sleep(0)

    return script


def once(data: bytes) -> Script:
    """Answer one request with these bytes and close."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(data)

    return script


async def endless(peer: Peer) -> None:
    await peer.request()
    await peer.send(STREAM_HEAD)
    while True:
        await peer.send(chunk(b"t" * 100))
        await asyncio.sleep(0.005)
