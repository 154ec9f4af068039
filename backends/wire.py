"""The data plane's own HTTP/1.1 client: httptools on asyncio protocols, as little CPU a request as Python allows."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from urllib.parse import urlsplit

import msgspec
from typing_extensions import override

from backends.connection import Connection
from backends.errors import Broken, Interrupted, TimedOut, Unreachable
from backends.inflate import inflated
from backends.keepalive import KeepAlive, Origin, Stats
from backends.transport import Document, RawReply, trust
from backends.types import Access

KEEPALIVE_EXPIRY = 4.0  # seconds: model servers close idle connections after 5
CONNECT_TIMEOUT = 5.0
CONNECTIONS = 1024  # to one server
DOCUMENT_LIMIT = 8 * 1024 * 1024  # bytes of an answer to get()
_TARGETS = 1024  # URLs whose parts are remembered
_ALWAYS = "accept: */*\r\naccept-encoding: identity\r\nuser-agent: turnout\r\n"


class _Target(msgspec.Struct, frozen=True):
    """A URL taken apart once: where to connect, and how every request to it begins."""

    origin: Origin
    path: str
    host: str  # the Host header


class WireUpstream:
    """See `backends.transport.Upstream`. One for each event loop."""

    def __init__(
        self,
        *,
        keepalive_expiry: float = KEEPALIVE_EXPIRY,
        connect_timeout: float = CONNECT_TIMEOUT,
        connections: int = CONNECTIONS,
        trust: Callable[[str | None], ssl.SSLContext] = trust,
    ) -> None:
        self._kept = KeepAlive(expiry=keepalive_expiry, limit=connections, connect_timeout=connect_timeout, trust=trust)
        self._targets: dict[tuple[str, str | None], _Target] = {}

    def post(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        access: Access,
        first_byte_timeout: float,
        idle_timeout: float,
    ) -> AbstractAsyncContextManager[RawReply]:
        target = self._target(url, access.ca)
        request = _request("POST", target, headers, access.key, body)
        reusable = headers.get("connection") != "close"
        return _Exchange(self._kept, target.origin, request, first_byte_timeout, idle_timeout, reusable=reusable)

    async def get(self, url: str, headers: Mapping[str, str], *, access: Access, timeout: float) -> Document:  # noqa: ASYNC109
        target = self._target(url, access.ca)
        request = _request("GET", target, headers, access.key, None)
        try:
            async with (
                asyncio.timeout(timeout),
                _Exchange(self._kept, target.origin, request, timeout, timeout, reusable=True) as reply,
            ):
                return Document(reply.status, reply.headers, await _whole(url, reply.body))
        except TimeoutError as error:
            raise TimedOut(f"{url}: no whole answer within {timeout:g} s") from error

    def stats(self) -> Stats:
        return self._kept.stats()

    async def aclose(self) -> None:
        await self._kept.aclose()

    def _target(self, url: str, ca: str | None) -> _Target:
        known = self._targets.get((url, ca))
        if known is None:
            if len(self._targets) >= _TARGETS:  # replicas come and go on new ports
                self._targets.clear()
            known = self._targets[(url, ca)] = _parse(url, ca)
        return known


class _Exchange(AbstractAsyncContextManager[RawReply]):
    """One request, from finding a connection to giving it back. A class, because a generator costs 3 us more."""

    __slots__ = (
        "_body",
        "_connection",
        "_first_byte_timeout",
        "_idle_timeout",
        "_kept",
        "_origin",
        "_request",
        "_reusable",
    )

    def __init__(
        self,
        kept: KeepAlive,
        origin: Origin,
        request: bytes,
        first_byte_timeout: float,
        idle_timeout: float,
        *,
        reusable: bool,
    ) -> None:
        self._kept = kept
        self._origin = origin
        self._request = request
        self._first_byte_timeout = first_byte_timeout
        self._idle_timeout = idle_timeout
        self._reusable = reusable
        self._connection: Connection | None = None
        self._body: _Body | None = None

    @override
    async def __aenter__(self) -> RawReply:
        deadline = asyncio.get_running_loop().time() + self._first_byte_timeout
        connection = self._kept.idle(self._origin)
        if connection is None:
            connection = await self._ask_anew(deadline)
        else:
            try:
                await self._ask(connection, deadline, reused=True)
            except Broken as error:
                if not error.retryable:
                    raise
                connection = await self._ask_anew(deadline)
        return self._reply(connection)

    async def _ask_anew(self, deadline: float) -> Connection:
        left = deadline - asyncio.get_running_loop().time()
        connection = await self._kept.dial(self._origin, left)
        await self._ask(connection, deadline, reused=False)
        return connection

    async def _ask(self, connection: Connection, deadline: float, *, reused: bool) -> None:
        connection.send(self._request, deadline=deadline, idle_timeout=self._idle_timeout, reused=reused)
        try:
            await connection.head()
        except BaseException:
            self._kept.give_back(self._origin, connection)
            raise
        self._connection = connection

    def _reply(self, connection: Connection) -> RawReply:
        body = self._body = _Body(connection)
        headers = connection.headers
        encoding = headers.get("content-encoding", "identity")
        if encoding == "identity" and headers.get("transfer-encoding", "chunked").lower() == "chunked":
            return RawReply(connection.status, headers, body)
        try:
            pieces = inflated(body, encoding, headers.get("transfer-encoding"))
        except ValueError as error:
            self._leave()
            raise Broken(f"{connection.target}: {error}", was_idle=False) from error
        kept = {n: v for n, v in headers.items() if n not in ("content-encoding", "content-length")}
        return RawReply(connection.status, kept, pieces)

    @override
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            if not self._reusable:
                connection.abort()
            self._kept.give_back(self._origin, connection)


class _Body(AsyncIterator[bytes]):
    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection

    def close(self) -> None:
        self._connection = None

    @override
    async def __anext__(self) -> bytes:
        if self._connection is None:  # it may be carrying another request by now
            raise Interrupted("the request has been left")
        piece = await self._connection.read()
        if not piece:
            raise StopAsyncIteration
        return piece


async def _whole(url: str, body: AsyncIterator[bytes]) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in body:
        size += len(piece)
        if size > DOCUMENT_LIMIT:
            raise Interrupted(f"{url}: more than {DOCUMENT_LIMIT} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _parse(url: str, ca: str | None) -> _Target:
    """Take a URL apart. Raises Unreachable where it is none that could be asked."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Unreachable(f"{url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Unreachable(f"{url!r} is not an http:// or https:// URL")
    if "@" in parts.netloc:
        raise Unreachable("a URL must not hold credentials: give the key by itself")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Unreachable(f"{url!r} holds characters that no URL may hold")
    tls = parts.scheme == "https"
    origin = Origin(parts.hostname, port or (443 if tls else 80), tls, ca if tls else None)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Target(origin, path, parts.netloc)


def _request(method: str, target: _Target, headers: Mapping[str, str], key: str | None, body: bytes | None) -> bytes:
    """The whole request as bytes. Raises ValueError for a header that would break out of its line."""
    lines = [f"{method} {target.path} HTTP/1.1\r\nhost: {target.host}\r\n", _ALWAYS]
    count = 5 + len(headers)
    if key is not None:
        lines.append(f"authorization: Bearer {key}\r\n")
        count += 1
    if body is not None:
        lines.append(f"content-length: {len(body)}\r\n")
        count += 1
    lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = "".join(lines)
    if head.count("\n") != count or head.count("\r") != count or "\0" in head:
        raise ValueError("a header holds a line break")
    return head.encode("latin-1") + b"\r\n" + (body or b"")
