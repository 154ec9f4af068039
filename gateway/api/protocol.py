"""HTTP/1.1 as clients speak it: uvicorn's protocol, with the bounds and manners that it lacks.

A head has a limit, a request that stops half-way has a deadline, what is no HTTP is refused in OpenAI's shape, an offer
to upgrade (Java's client makes one with every plain request, for HTTP/2) does not cost a request its body, and a client
that sent its next request before it left is still seen to leave.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import httptools
import msgspec
from typing_extensions import override
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.api.departure import EXTENSION
from gateway.serve.errors import BadRequest, GatewayError, HeadTooLarge, RequestTimeout

HEAD_LIMIT: Final = 64 * 1024  # bytes of request line and headers
PATIENCE = 60.0  # seconds without a byte until a request that is not whole is given up
LINGER: Final = 1.0  # seconds that a client gets to read why it was refused


class _Leaving:
    """See `departure.Departure`. Told by the connection, which costs no task for each request."""

    __slots__ = ("_call", "_cycle", "_flow")

    def __init__(self, flow: FlowControl, cycle: RequestResponseCycle) -> None:
        self._flow = flow
        self._cycle = cycle
        self._call: Callable[[], None] | None = None

    def watch(self, call: Callable[[], None]) -> None:
        self._call = call
        self._flow.resume_reading()  # else the end of the connection is not seen either
        if self._cycle.disconnected:
            asyncio.get_running_loop().call_soon(self.tell)

    def ignore(self) -> None:
        self._call = None

    def tell(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class ClientProtocol(HttpToolsProtocol):
    """One connection of a client. To be given to uvicorn as `http`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_head = False
        self._head = 0  # bytes since the head began, or since the last of the body, without the newest read
        self._read = 0  # bytes of the newest read
        self._fed = False  # the newest read held some of a body
        self._unfinished = True  # a request is on its way, or the first is awaited
        self._repeating = False  # a head that is known already goes through the parser again
        self._refused = False  # nothing more is read
        self._running: RequestResponseCycle | None = None
        self._leaving: _Leaving | None = None  # of the same request
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle | None = None

    # --- asyncio.Protocol ---

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._heard_at = self.loop.time()
        self._watch = self.loop.call_later(PATIENCE, self._look)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)
        self._end_running()  # uvicorn tells only the newest request, which may be waiting behind this one

    @override
    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._heard_at = self.loop.time()
        self._read, self._fed = len(data), False
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if not self._refused:
                self.send_400_response("The request is not valid HTTP.")
            return
        if self._unfinished:  # in its head, or in trailers and the like, which nobody reads
            self._head = 0 if self._fed else self._head + len(data)
            if self._head > HEAD_LIMIT:
                self._refuse_head()

    # --- the parser's callbacks ---

    @override
    def on_message_begin(self) -> None:
        if self._repeating:
            return
        self._in_head, self._head = True, 0
        self._unfinished = True
        super().on_message_begin()

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer: what the application sees as headers was sent as such
            super().on_header(name, value)

    @override
    def on_body(self, body: bytes) -> None:
        self._fed = True
        super().on_body(body)

    @override
    def on_headers_complete(self) -> None:
        if self._repeating:
            return
        self._in_head = False
        if self._head + self._read > HEAD_LIMIT and self._size_of_head() > HEAD_LIMIT:
            self._refuse_head()
            raise ValueError("the head is too large")  # ends the parsing
        super().on_headers_complete()

    @override
    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():  # the parser takes the body for another protocol: see _feed
            return
        self._unfinished = False
        super().on_message_complete()

    # --- what uvicorn does otherwise ---

    def _feed(self, data: bytes) -> None:
        """Parse; where an upgrade is offered it is declined, and the body read as if it had not been."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._repeat_head()
                data = data[upgrade.args[0] :]
            else:
                return

    def _repeat_head(self) -> None:
        """A new parser that knows of this request what says how long its body is, and goes on from there."""
        told = [(name, value) for name, value in self.headers if name in (b"content-length", b"transfer-encoding")]
        self.parser = httptools.HttpRequestParser(self)
        self._repeating = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(b"%s: %s\r\n" % header for header in told))
        self._repeating = False

    def _size_of_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _refuse_head(self) -> None:
        self._refuse(HeadTooLarge(f"The request line and headers are longer than {HEAD_LIMIT} bytes."))

    @override
    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest(msg))

    def _refuse(self, error: GatewayError) -> None:
        """Say no where nothing has been said yet, and close."""
        if self._watch is not None:
            self._watch.cancel()
        if self._running is not None and not self._running.response_complete:
            if self._running.response_started or self._running is not self.cycle:
                self.transport.abort()  # in the midst of another answer there is no other way
                return
            self._end_running()
        body = msgspec.json.encode(error.body)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        # Closed at once, what the client still sends would be met by a reset, and that can overtake this answer.
        self._refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._watch = self.loop.call_later(LINGER, self.transport.close)

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        self._leaving = _Leaving(self.flow, cycle)
        cycle.scope["extensions"] = cast("Any", {EXTENSION: self._leaving})
        super()._start_asgi_task(cycle, app)

    def _end_running(self) -> None:
        """The client of the request that is being answered has left, or is left."""
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
            if self._leaving is not None:
                self._leaving.tell()

    def _look(self) -> None:
        """Whether a request has stopped half-way. One timer for a connection, moved when it fires."""
        now = self.loop.time()
        if not self._unfinished or self.flow.read_paused:
            self._heard_at = now
        if now - self._heard_at >= PATIENCE:
            self._refuse(RequestTimeout(f"Nothing came for {PATIENCE:g} seconds, and the request is not whole."))
        else:
            self._watch = self.loop.call_later(self._heard_at + PATIENCE - now, self._look)
