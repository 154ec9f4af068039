"""The fastest server Python can be: fixed bytes, nothing computed, for benchmarks.

The number of tokens of an answer is the request's max_tokens, else `--chunks`; a stream has one chunk a token. The
prompt is taken to have 100 tokens, none of them cached.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Final, cast

import httptools
import msgspec
from typing_extensions import override

from engines.sim.dialects import DIALECTS, Frames, Told
from engines.sim.options import Options

_STREAM: Final = re.compile(rb'"stream"\s*:\s*true')
_LIMIT: Final = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d{1,6})')
_PROMPT_TOKENS: Final = 100


class Canned:
    """Answers made once for each number of tokens: HTTP heads and bodies, ready to be written."""

    def __init__(self, options: Options) -> None:
        self._frames = Frames(DIALECTS[options.dialect], chat=True, number=0, created=0, model=options.model)
        self.paced = options.chunk_interval
        self.default = options.chunks
        self.stream = cache(self._stream)
        self.whole = cache(self._whole)
        self.pages = {
            b"/health": _whole(b'{"status":"ok"}'),
            b"/v1/models": _whole(
                msgspec.json.encode({"object": "list", "data": [{"id": options.model, "object": "model"}]})
            ),
            b"/metrics": _whole(
                b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n", b"text/plain"
            ),
        }

    def _stream(self, count: int) -> tuple[bytes, ...]:
        """Head, then the HTTP chunks of a stream with `count` tokens; each event is one chunk."""
        frames = self._frames
        told = Told(_PROMPT_TOKENS, count, 0)
        events = [frames.role(0, "")]
        events += [frames.chunk(0, {"content": " word"}, "length" if at == count - 1 else None) for at in range(count)]
        events.append(frames.usage(told))
        chunks = [_chunk(b"data: " + msgspec.json.encode(event) + b"\n\n") for event in events]
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        return (head + chunks[0], *chunks[1:], _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def _whole(self, count: int) -> bytes:
        message = {"role": "assistant", "content": " word" * count}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
        return _whole(msgspec.json.encode(self._frames.whole([choice], Told(_PROMPT_TOKENS, count, 0))))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _whole(body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


class _Connection(asyncio.Protocol):
    def __init__(self, canned: Canned, connections: set[asyncio.Transport]) -> None:
        self._canned = canned
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body = b""
        self._later: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self._transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self._transport)
        if self._later is not None:
            self._later.cancel()

    @override
    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._path, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        canned, body = self._canned, self._body
        page = canned.pages.get(self._path)
        if page is not None:
            self._transport.write(page)
            return
        limit = _LIMIT.search(body, max(len(body) - 1024, 0)) or _LIMIT.search(body)
        count = int(limit[1]) if limit else canned.default
        if _STREAM.search(body, max(len(body) - 1024, 0)) is None and _STREAM.search(body) is None:
            self._transport.write(canned.whole(count))
        elif canned.paced > 0:
            self._pace(canned.stream(count), 0, asyncio.get_running_loop().time())
        else:
            self._transport.write(b"".join(canned.stream(count)))

    def _pace(self, chunks: tuple[bytes, ...], at: int, due: float) -> None:
        """One chunk now, the next after the interval; the due times do not drift."""
        if self._transport.is_closing():
            return
        self._transport.write(chunks[at])
        if at + 1 < len(chunks):
            due += self._canned.paced
            self._later = asyncio.get_running_loop().call_at(due, self._pace, chunks, at + 1, due)


@asynccontextmanager
async def serve_fastest(options: Options) -> AsyncGenerator[str]:
    """Listen until the context is left; yields the URL."""
    canned = Canned(options)
    connections: set[asyncio.Transport] = set()
    listener = await asyncio.get_running_loop().create_server(
        lambda: _Connection(canned, connections), options.host, options.port, backlog=1024
    )
    host, port = listener.sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        listener.close()
        for one in list(connections):
            one.abort()
