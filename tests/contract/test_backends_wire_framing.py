"""The HTTP client and the ways in which a server may frame, damage or compress an answer."""

import asyncio
import gzip
import zlib
from collections.abc import Callable

import pytest

from backends.errors import Broken, Interrupted
from backends.transport import Upstream
from backends.wire import WireUpstream
from tests.support.raw_server import LAST_CHUNK, STREAM_HEAD, Peer, answer, chunk, raw_server
from tests.support.wire import IDLE, NONE, ask, once, post, says, whole

# --- framing ---

BODY = b'{"text":"caf\xc3\xa9"}'
FRAMINGS = {
    "length": answer(BODY),
    "chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunk(BODY[:3])
    + chunk(BODY[3:])
    + LAST_CHUNK,
    "chunk extension, upper-case and padded size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
    + b"%04X;name=value\r\n%s\r\n" % (len(BODY), BODY)
    + LAST_CHUNK,
    "trailers": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunk(BODY)
    + b"0\r\nx-sum: 1\r\nx-b: 2\r\n\r\n",
    "informational first": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    + answer(BODY),
    "empty header, folded case, spaces": b"HTTP/1.1 200 OK\r\nX-Empty:\r\nCONTENT-LENGTH:   %d  \r\n\r\n" % len(BODY)
    + BODY,
    "no reason": b"HTTP/1.1 200 \r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY,
}


@pytest.mark.parametrize("name", FRAMINGS)
async def test_framing_split_at_every_byte(wire: WireUpstream, name: str) -> None:
    data = FRAMINGS[name]
    turn = 0

    async def script(peer: Peer) -> None:
        nonlocal turn
        while await peer.request():
            turn += 1
            await peer.send(data[:turn])
            await asyncio.sleep(0)
            await peer.send(data[turn:])

    async with raw_server(script) as server:
        for _ in range(len(data)):
            assert await ask(wire, server.url) == BODY


@pytest.mark.parametrize("name", FRAMINGS)
async def test_framing_byte_by_byte(wire: WireUpstream, name: str) -> None:
    data = FRAMINGS[name]
    async with raw_server(says(data, cuts=tuple(range(1, len(data))))) as server:
        assert await ask(wire, server.url) == BODY
        assert await ask(wire, server.url) == BODY


async def test_an_empty_header_is_read_as_empty(wire: WireUpstream) -> None:
    async with raw_server(says(answer(x_none="", x_one="1"))) as server, post(wire, server.url) as reply:
        assert (reply.headers["x-none"], reply.headers["x-one"]) == ("", "1")


async def test_repeated_headers_are_joined(wire: WireUpstream) -> None:
    data = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\ncontent-length: 0\r\n\r\n"
    async with raw_server(says(data)) as server, post(wire, server.url) as reply:
        assert reply.headers["x-a"] == "1, 2"


async def test_trailers_do_not_reach_the_next_answer(wire: WireUpstream) -> None:
    async with raw_server(says(FRAMINGS["trailers"])) as server:
        for _ in range(2):
            async with post(wire, server.url) as reply:
                assert "x-b" not in reply.headers
                await whole(reply)


async def test_a_body_until_the_connection_closes(upstream: Upstream) -> None:
    async with raw_server(once(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it")) as server:
        assert await ask(upstream, server.url) == b"all of it"
        assert await ask(upstream, server.url) == b"all of it"


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_a_status_without_a_body(wire: WireUpstream, status: str) -> None:
    async with raw_server(says(f"HTTP/1.1 {status}\r\n\r\n".encode())) as server:
        assert await ask(wire, server.url) == b""
        assert wire.stats() == IDLE


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    ],
)
async def test_malformed_heads(wire: WireUpstream, data: bytes) -> None:
    async with raw_server(once(data)) as server:
        with pytest.raises(Broken) as caught:
            await ask(wire, server.url)
        assert not caught.value.retryable
        assert wire.stats() == NONE


async def test_a_malformed_chunk_comes_after_the_good_ones(wire: WireUpstream) -> None:
    async with (
        raw_server(once(STREAM_HEAD + chunk(b"good") + b"zz\r\nbad\r\n")) as server,
        post(wire, server.url) as reply,
    ):
        assert await anext(reply.body) == b"good"
        with pytest.raises(Interrupted, match="malformed"):
            await anext(reply.body)


BOMBS = {
    "one endless header": b"HTTP/1.1 200 OK\r\nx-a: " + b"a" * 200_000,
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 300 + b"\r\n",
    "large headers in one read": b"HTTP/1.1 200 OK\r\nx-a: " + b"a" * 70_000 + b"\r\ncontent-length: 0\r\n\r\n",
    "endless informational answers": b"HTTP/1.1 102 Processing\r\n\r\n" * 4000,
}


@pytest.mark.parametrize("name", BOMBS)
async def test_header_bombs(wire: WireUpstream, name: str) -> None:
    async with raw_server(says(BOMBS[name])) as server:
        with pytest.raises(Broken, match="headers"):
            await ask(wire, server.url)
        assert wire.stats() == NONE


async def test_anendless_trailer_is_a_bomb_too(wire: WireUpstream) -> None:
    async with raw_server(once(STREAM_HEAD + chunk(b"x") + b"0\r\nx-a: " + b"a" * 400_000)) as server:
        with pytest.raises(Interrupted, match="headers"):
            await ask(wire, server.url)


# --- compression that was not asked for ---


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


TEXT = b"data: {}\n\n" * 30_000
PACKED = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "two members": ("gzip", gzip.compress(TEXT[:70_000]) + gzip.compress(TEXT[70_000:])),
    "zlib": ("deflate", zlib.compress(TEXT)),
    "raw deflate": ("deflate", _raw_deflate(TEXT)),
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("step", [1, 7, 100_000])
async def test_compressed_answers_are_opened(wire: WireUpstream, name: str, step: int) -> None:
    encoding, packed = PACKED[name]
    pieces = b"".join(chunk(packed[i : i + step]) for i in range(0, len(packed), step))
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    async with raw_server(says(head + pieces + LAST_CHUNK)) as server, post(wire, server.url) as reply:
        assert "content-encoding" not in reply.headers
        sizes = []
        found = b""
        async for piece in reply.body:
            sizes.append(len(piece))
            found += piece
        assert found == TEXT
        assert max(sizes) <= 64 * 1024


async def test_a_flushed_gzip_stream_is_not_held_back(wire: WireUpstream) -> None:
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    first = packer.compress(b"data: 1\n\n") + packer.flush(zlib.Z_SYNC_FLUSH)
    rest = packer.compress(b"data: 2\n\n") + packer.flush()
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + first)
        await go_on.wait()
        await peer.send(rest)

    async with raw_server(script) as server, post(wire, server.url) as reply:
        assert await anext(reply.body) == b"data: 1\n\n"
        go_on.set()
        assert await whole(reply) == b"data: 2\n\n"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:30] + b"\0\0\0\0" + data[34:], lambda _: b"x"]
)
async def test_damaged_gzip(wire: WireUpstream, damage: Callable[[bytes], bytes]) -> None:
    packed = damage(gzip.compress(bytes(range(256)) * 40))
    async with raw_server(says(answer(packed, content_encoding="gzip"))) as server:
        with pytest.raises(Interrupted, match="compressed"):
            await ask(wire, server.url)


async def test_an_encoding_nobody_can_undo(wire: WireUpstream) -> None:
    async with raw_server(says(answer(b"x", content_encoding="br"))) as server:
        with pytest.raises(Broken, match="br"):
            await ask(wire, server.url)
