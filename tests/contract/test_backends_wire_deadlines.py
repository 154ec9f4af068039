"""The HTTP client and servers that are late, silent, or gone."""

import asyncio
import time

import pytest

from backends.errors import Broken, Interrupted, Stalled, TimedOut, Unreachable
from backends.transport import Upstream
from backends.wire import WireUpstream
from tests.support.raw_server import LAST_CHUNK, STREAM_HEAD, Peer, answer, chunk, raw_server
from tests.support.wire import NONE, ask, once, post, read_into, says, settles, whole

# --- deadlines and failures ---


async def test_nobody_listens(upstream: Upstream) -> None:
    async with raw_server(says(answer())) as server:
        pass
    with pytest.raises(Unreachable) as caught:
        await ask(upstream, server.url)
    assert caught.value.retryable


async def test_a_connection_that_is_never_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = WireUpstream(connect_timeout=0.1)

    async def never(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    with pytest.raises(Unreachable, match=r"within 0\.1 s"):
        await ask(wire, "http://127.0.0.1:1")
    assert wire.stats() == NONE


async def test_no_head_in_time(upstream: Upstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async with raw_server(script) as server:
        start = time.perf_counter()
        with pytest.raises(TimedOut):
            await ask(upstream, server.url, first=0.4)
        assert time.perf_counter() - start < 2
        await settles(lambda: server.open == 0)


async def test_no_first_byte_in_time(upstream: Upstream) -> None:
    """The head alone does not count: servers send it before they work."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD)
        await peer.gone()

    async with raw_server(script) as server, post(upstream, server.url, first=0.4) as reply:
        with pytest.raises(TimedOut):
            await anext(reply.body)


async def test_silence_in_the_middle(upstream: Upstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD + chunk(b"token"))
        await peer.gone()

    async with raw_server(script) as server:
        async with post(upstream, server.url, idle=0.1) as reply:
            assert await anext(reply.body) == b"token"
            with pytest.raises(Stalled, match=r"no byte came for 0\.1 s"):
                await anext(reply.body)
        await settles(lambda: server.open == 0)


async def test_a_slow_but_steady_answer_outlives_every_timeout(wire: WireUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD)
        for _ in range(8):
            await peer.send(chunk(b"t"))
            await asyncio.sleep(0.06)
        await peer.send(LAST_CHUNK)

    async with raw_server(script) as server:
        assert await ask(wire, server.url, first=0.2, idle=0.2) == b"t" * 8


async def test_a_slow_reader_is_not_a_silent_server(wire: WireUpstream) -> None:
    async with (
        raw_server(says(STREAM_HEAD + chunk(b"x" * 300_000) + LAST_CHUNK)) as server,
        post(wire, server.url, idle=0.05) as reply,
    ):
        size = len(await anext(reply.body))
        await asyncio.sleep(0.15)
        assert size + len(await whole(reply)) == 300_000


@pytest.mark.parametrize("size", [0, 1, 5, 10])
async def test_cut_in_the_body(upstream: Upstream, size: int) -> None:
    async with (
        raw_server(once(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n" + b"x" * size)) as server,
        post(upstream, server.url) as reply,
    ):
        got = bytearray()
        with pytest.raises(Interrupted):
            await read_into(got, reply)
        assert got == b"x" * size


async def test_cut_between_chunks(upstream: Upstream) -> None:
    async with raw_server(once(STREAM_HEAD + chunk(b"a") + chunk(b"b"))) as server, post(upstream, server.url) as reply:
        got = bytearray()
        with pytest.raises(Interrupted):
            await read_into(got, reply)
        assert got == b"ab"


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n"])
async def test_cut_before_the_head_was_whole(upstream: Upstream, head: bytes) -> None:
    async with raw_server(once(head)) as server:
        with pytest.raises(Broken) as caught:
            await ask(upstream, server.url)
        assert not caught.value.retryable


async def test_a_reset_is_not_the_end_of_a_body_until_close(wire: WireUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await asyncio.sleep(0.02)
        sock = peer.writer.get_extra_info("socket")
        sock.setsockopt(1, 13, b"\x01\0\0\0\0\0\0\0")  # SO_LINGER 0: close with a reset
        peer.writer.transport.abort()

    async with raw_server(script) as server, post(wire, server.url) as reply:
        assert await anext(reply.body) == b"half"
        with pytest.raises(Interrupted):
            await anext(reply.body)


async def test_an_early_answer_to_a_large_body(wire: WireUpstream) -> None:
    """A 413 may come before the body has been read; the rest of it is not waited for."""

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(answer(b"too large", status="413 Too Large"))
        await peer.gone()

    async with raw_server(script) as server:
        async with post(wire, server.url, b"x" * 20_000_000) as reply:
            assert (reply.status, await whole(reply)) == (413, b"too large")
        assert wire.stats() == NONE
