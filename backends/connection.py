"""One HTTP/1.1 client connection: bytes in, a response head and body pieces out, with backpressure and deadlines."""

import asyncio
from collections.abc import Callable, Mapping
from typing import cast

import httptools
from typing_extensions import override

from backends.errors import BackendError, Broken, Interrupted, Stalled, TimedOut

HEAD_LIMIT = 64 * 1024  # bytes of head, trailers or chunk extensions that may come without a body byte
HEADERS_LIMIT = 256
BUFFER_LIMIT = 64 * 1024  # bytes kept for a slow reader before the socket is left alone
RACE_SECONDS = 1.0  # a pooled connection that dies later than this after a request was sent did not lose the race
_TICK = 0.002  # event loops round timers to a millisecond


class Connection(asyncio.Protocol):
    """Carries one exchange at a time: `send`, `head`, `read` until empty, then `release` or `abort`."""

    __slots__ = (
        "_chunks",
        "_deadline",
        "_dry",
        "_end",
        "_error",
        "_fresh",
        "_head",
        "_held",
        "_idle_timeout",
        "_interim",
        "_keep",
        "_loop",
        "_lost",
        "_parser",
        "_paused",
        "_reused",
        "_sent_at",
        "_surplus",
        "_timer",
        "_timer_at",
        "_transport",
        "_until_close",
        "_waiter",
        "busy",
        "closed",
        "complete",
        "headers",
        "idle_since",
        "on_body",
        "received",
        "size",
        "status",
        "target",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, target: str, lost: Callable[["Connection"], None]) -> None:
        self._loop = loop
        self._lost = lost
        self._fresh: list[bytes] = []  # body pieces of the read being parsed
        self.on_body = self._fresh.append  # a bound C method: a stream has one call for each of its chunks
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._paused = False
        self._surplus = False  # more came than was asked for: never to be used again
        self.target = target  # for messages: host:port
        self.closed = False
        self.busy = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self._chunks: list[bytes] = []
        self._held = 0  # bytes in _chunks
        self._end: int | None = None  # how many of _fresh are this answer's: set where it ends
        self._head: list[tuple[bytes, bytes]] = []
        self._error: BackendError | None = None
        self._dry = 0
        self._interim = False
        self._keep = False
        self._until_close = False
        self._reused = False
        self._sent_at = 0.0
        self._deadline = 0.0
        self._idle_timeout = 0.0
        self.status = 0  # 0: the head is not there yet
        self.headers: Mapping[str, str] = {}
        self.size = 0  # body bytes received
        self.received = False  # anything at all since the request was sent
        self.complete = False

    # --- the exchange ---

    def send(self, request: bytes, *, deadline: float, idle_timeout: float, reused: bool) -> None:
        """Write a whole request. `deadline`: loop time by which the first body byte must be there."""
        self._reset()
        self.busy = True
        self._reused = reused
        self._sent_at = self._loop.time()
        self._deadline = deadline
        self._idle_timeout = idle_timeout
        if self._transport is None or self._transport.is_closing():
            self._error = self._broken("closed before the request was sent")
        else:
            self._transport.write(request)

    async def head(self) -> None:
        """Wait until `status` and `headers` are there. Raises Broken, TimedOut."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """All that has come since the last call; empty at the body's end. Raises Interrupted, TimedOut."""
        while True:
            if self._chunks:
                return self._take()
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            if self.size:
                self._deadline = self._loop.time() + self._idle_timeout
            await self._wait()

    def _take(self) -> bytes:
        chunks = self._chunks
        self._chunks = []
        self._held = 0
        if self._paused:
            self._resume()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def release(self) -> bool:
        """End the exchange; True: the connection is clean and may carry another. False: it has been closed."""
        self._disarm()
        transport = self._transport
        clean = (
            self.complete
            and self._keep
            and not self._surplus
            and transport is not None
            and not transport.is_closing()
            and transport.get_write_buffer_size() == 0
        )
        self.busy = False
        if not clean:
            self.abort()
            return False
        if self._paused:
            self._resume()
        self.idle_since = self._loop.time()
        return True

    def abort(self) -> None:
        """Close the socket now, whatever is still unsent; whoever still waits is told."""
        if self.busy and not self.complete and self._error is None:
            self._error = self._broken("closed on this side")
            self._wake()
        self.busy = False
        self._disarm()
        if self._transport is not None:
            self._transport.abort()

    # --- waiting ---

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        if self._timer is None or self._timer_at > self._deadline:
            self._arm()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _arm(self) -> None:
        self._disarm()
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._tick)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        """One timer serves the whole exchange: it is only moved when it fires too early."""
        self._timer = None
        if self._waiter is None:
            return
        if self._deadline - self._loop.time() > _TICK:
            self._arm()
        elif self.size:
            self._fail(Stalled(f"{self.target}: no byte came for {self._idle_timeout:g} s after {self.size} bytes"))
        else:
            self._fail(TimedOut(f"{self.target}: no first byte in time"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: BackendError) -> None:
        if self._error is None:
            self._error = error
        self._wake()
        if self._transport is not None:
            self._transport.abort()

    def _broken(self, reason: str) -> BackendError:
        if self.status:
            return Interrupted(f"{self.target}: {reason} after {self.size} bytes of the answer")
        race = self._reused and not self.received and self._loop.time() - self._sent_at < RACE_SECONDS
        return Broken(f"{self.target}: {reason} before the answer began", was_idle=race)

    def _resume(self) -> None:
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- asyncio.Protocol ---

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        if not self.busy:
            self._surplus = True  # nobody asked: a late 408, or another answer's end
            self.abort()
            return
        self.received = True
        before = self.size
        fault = self._parse(data)
        if self._fresh:
            self._collect()
        if fault:
            self._fail(self._broken(fault))
            return
        self._dry = self._dry + len(data) if self.size == before else 0
        if self._dry > HEAD_LIMIT and not self.complete:
            self._fail(self._broken(f"sent over {HEAD_LIMIT} bytes of headers"))
        elif self._held > BUFFER_LIMIT and not self.complete and not self._paused:
            self._paused = True
            cast("asyncio.Transport", self._transport).pause_reading()
        if self.status:
            self._wake()

    def _parse(self, data: bytes) -> str:
        """Feed the parser; what is wrong with the answer, or nothing."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return "switched protocols unasked"
        except httptools.HttpParserError as error:
            if not self.complete:
                return f"sent malformed HTTP ({error})"
            self._surplus = True
        return ""

    def _collect(self) -> None:
        """Take the body pieces of one read together: whoever reads them then pays once, not for each chunk."""
        fresh = self._fresh if self._end is None else self._fresh[: self._end]
        piece = fresh[0] if len(fresh) == 1 else b"".join(fresh)
        self._fresh.clear()
        if self.complete:
            self._end = 0
        if piece:
            self.size += len(piece)
            self._held += len(piece)
            self._chunks.append(piece)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._transport = None
        if self.busy and not self.complete and self._error is None:
            if self.status and self._until_close and exc is None:
                self.complete = True
            else:
                self._error = self._broken("closed the connection" if exc is None else f"connection lost ({exc})")
        self._wake()
        self._lost(self)

    # --- httptools callbacks ---

    def on_message_begin(self) -> None:
        if self.complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            self._surplus = True  # a trailer: the parser may hold the last one back into the next answer
        else:
            self._head.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        if status < 200:  # noqa: PLR2004  1xx: the real head follows
            self._interim = True
            self._head = []
            return
        if len(self._head) > HEADERS_LIMIT or sum(len(n) + len(v) for n, v in self._head) > HEAD_LIMIT:
            self._fail(self._broken("sent too many headers"))
            return
        self.headers = _joined(self._head)
        self.status = status
        self._keep = self._parser.should_keep_alive()
        self._until_close = "content-length" not in self.headers and "transfer-encoding" not in self.headers

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif self._error is None and not self.complete:
            self.complete = True
            self._end = len(self._fresh)


def _joined(head: list[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in head:
        name = raw_name.decode("latin-1").lower()
        value = raw_value.decode("latin-1").strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
