"""HTTP/1.1 over a raw asyncio transport, near enough to the bytes to break them to order."""

import asyncio
import socket
import struct
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

import httptools
import msgspec
from typing_extensions import override


class Request(msgspec.Struct, frozen=True):
    method: str
    path: str  # without the query
    query: str
    headers: Mapping[str, str]  # lower-case names
    body: bytes
    keep_alive: bool


class Wire:
    """The way back to one client, for one answer: `begin`, `send` (any number), `end`; or `drop` at any point.

    `send` raises ConnectionResetError once the client has gone.
    """

    def __init__(self, transport: asyncio.Transport, *, keep_alive: bool, writable: asyncio.Event) -> None:
        self._transport = transport
        self._keep_alive = keep_alive
        self._writable = writable
        self._head = b""
        self._chunked = False
        self._squeeze: Any = None
        self.bytewise = False  # one byte a write
        self.mid_codepoint = False  # writes that end inside code points
        self.gzip = False
        self.deaf = False  # a client's leaving is not noticed until the next write
        self.dropped = False  # broken off by us
        self.status = 0

    def begin(self, status: int, headers: Mapping[str, str], length: int | None = None) -> None:
        """Note the head; it goes out with the first body byte, or with `flush`. `length` None: chunked."""
        self.status = status
        fields = dict(headers)
        if self.gzip and length != 0:
            fields["content-encoding"] = "gzip"
            self._squeeze = zlib.compressobj(wbits=31)
            length = None
        self._chunked = length is None
        fields |= {"transfer-encoding": "chunked"} if self._chunked else {"content-length": str(length)}
        if not self._keep_alive:
            fields["connection"] = "close"
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._head = f"HTTP/1.1 {status} {_reason(status)}\r\n{lines}\r\n".encode("latin-1")

    async def flush(self) -> None:
        """Send the head without waiting for the body."""
        await self._write()

    async def send(self, data: bytes) -> None:
        if self._squeeze is not None:
            data = self._squeeze.compress(data) + self._squeeze.flush(zlib.Z_SYNC_FLUSH)
        pieces = _cut(data, bytewise=self.bytewise) if self.bytewise or self.mid_codepoint else [data]
        await self._write(*(_chunk(piece) if self._chunked else piece for piece in pieces if piece))

    async def end(self, *, close: bool = False) -> None:
        """The answer is complete; `close`: so is the connection, whatever the head said."""
        rest = self._squeeze.flush() if self._squeeze is not None else b""
        tail = b"0\r\n\r\n" if self._chunked else b""
        await self._write((_chunk(rest) if rest else b"") + tail)
        if close or not self._keep_alive:
            self._transport.close()

    def drop(self, *, reset: bool = False) -> None:
        """Break the connection off: a FIN, or with `reset` an RST. What was written still goes out first, mostly."""
        self.dropped = True
        if not reset:
            self._transport.close()
            return
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    async def _write(self, *pieces: bytes) -> None:
        """Each piece in a write of its own; the head, where it is still due, before the first."""
        head, self._head = self._head, b""
        for piece in pieces or (b"",):
            if self._transport.is_closing():
                raise ConnectionResetError("The client has gone.")
            if head or piece:
                self._transport.write(head + piece)
            head = b""
            if len(pieces) > 1:
                await asyncio.sleep(0)
        await self._writable.wait()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _cut(data: bytes, *, bytewise: bool) -> list[bytes]:
    """Pieces of a body: single bytes, or cut after the first byte of each multi-byte code point."""
    if bytewise:
        return [data[at : at + 1] for at in range(len(data))]
    ends = [at + 1 for at, byte in enumerate(data) if byte >= 0xC0]  # noqa: PLR2004  a lead byte of UTF-8
    return [piece for piece in (data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)) if piece]


Handler = Callable[[Request, Wire], Awaitable[None]]


class Connection(asyncio.Protocol):
    """One client connection: requests are answered in turn; the one whose client leaves is cancelled."""

    def __init__(self, handler: Handler, connections: set["Connection"], idle_limit: float = 0.0) -> None:
        self._handler = handler
        self._connections = connections
        self._idle_limit = idle_limit  # seconds; 0: none
        self._idle_timer: asyncio.TimerHandle | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._writable = asyncio.Event()
        self._writable.set()
        self._requests: deque[Request] = deque()
        self._wire: Wire | None = None
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self.task: asyncio.Task[None] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        self._rest()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._stop_timer()
        self._writable.set()
        if self.task is not None and not (self._wire is not None and self._wire.deaf):
            self.task.cancel()

    @override
    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    @override
    def pause_writing(self) -> None:
        self._writable.clear()

    @override
    def resume_writing(self) -> None:
        self._writable.set()

    # What httptools calls while it parses.

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path, _, query = self._target.decode("latin-1").partition("?")
        method = self._parser.get_method().decode()
        keep_alive = self._parser.should_keep_alive()
        self._requests.append(Request(method, path, query, self._headers, b"".join(self._body), keep_alive))
        self._stop_timer()
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        try:
            while self._requests and not self.transport.is_closing():
                request = self._requests.popleft()
                self._wire = Wire(self.transport, keep_alive=request.keep_alive, writable=self._writable)
                with suppress(ConnectionResetError):
                    await self._handler(request, self._wire)
        except Exception:
            self.transport.abort()  # nobody is left waiting for an answer that a bug has eaten
            raise
        finally:
            self.task = None
            self._rest()

    def _rest(self) -> None:
        if self._idle_limit > 0 and not self.transport.is_closing():
            self._idle_timer = asyncio.get_running_loop().call_later(self._idle_limit, self.transport.close)

    def _stop_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
