"""The transport over httpx, for what ours does not speak: HTTP/2 and proxies. It costs many times the CPU."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import httpx

from backends.errors import BackendError, Broken, Interrupted, Overloaded, Stalled, TimedOut, Unreachable
from backends.transport import Document, RawReply, trust
from backends.types import Access

CONNECT_TIMEOUT: Final = 5.0  # seconds
KEEPALIVE_EXPIRY: Final = 4.0  # seconds: model servers close idle connections after 5

_BEFORE_THE_HEAD: Final[tuple[tuple[type[Exception], type[BackendError]], ...]] = (
    (httpx.ConnectError, Unreachable),
    (httpx.ConnectTimeout, Unreachable),
    (httpx.ProxyError, Unreachable),
    (httpx.UnsupportedProtocol, Unreachable),
    (httpx.InvalidURL, Unreachable),
    (httpx.PoolTimeout, Overloaded),
    (httpx.TimeoutException, TimedOut),
    (TimeoutError, TimedOut),  # before its parent
    (OSError, Unreachable),  # a CA bundle that cannot be read
)


class HttpxUpstream:
    """See `backends.transport.Upstream`. It cannot tell a lost keep-alive race, so `Broken` is never retryable."""

    def __init__(
        self, *, http2: bool = False, proxy: str | None = None, trust: Callable[[str | None], ssl.SSLContext] = trust
    ) -> None:
        self._http2 = http2
        self._proxy = proxy
        self._trust = trust
        self._clients: dict[str | None, httpx.AsyncClient] = {}

    @asynccontextmanager
    async def post(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        access: Access,
        first_byte_timeout: float,
        idle_timeout: float,
    ) -> AsyncGenerator[RawReply]:
        deadline = asyncio.get_running_loop().time() + first_byte_timeout
        response: httpx.Response | None = None
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    client = self._client(access.ca)
                    request = client.build_request("POST", url, content=body, headers=_headers(headers, access))
                    response = await client.send(request, stream=True)
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                raise _before_the_head(url, error) from error
            pieces = _body(url, response, deadline, idle_timeout)
            yield RawReply(response.status_code, _kept(response), pieces)
        finally:
            if response is not None:
                await response.aclose()

    async def get(self, url: str, headers: Mapping[str, str], *, access: Access, timeout: float) -> Document:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                response = await self._client(access.ca).get(url, headers=_headers(headers, access))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise _before_the_head(url, error) from error
        return Document(response.status_code, _kept(response), response.content)

    async def aclose(self) -> None:
        clients = list(self._clients.values())
        self._clients.clear()
        for client in clients:
            await client.aclose()

    def _client(self, ca: str | None) -> httpx.AsyncClient:
        if ca not in self._clients:
            self._clients[ca] = httpx.AsyncClient(
                verify=self._trust(ca),
                http2=self._http2,
                proxy=self._proxy,
                trust_env=False,  # a proxy is used where it is configured, not where a variable happens to stand
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT, pool=CONNECT_TIMEOUT),
                limits=httpx.Limits(
                    max_connections=1024, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_EXPIRY
                ),
            )
        return self._clients[ca]


def _before_the_head(url: str, error: Exception) -> BackendError:
    for theirs, ours in _BEFORE_THE_HEAD:
        if isinstance(error, theirs):
            return ours(f"{url}: {error!r}")
    return Broken(f"{url}: {error!r}", was_idle=False)


def _headers(headers: Mapping[str, str], access: Access) -> dict[str, str]:
    key = {"authorization": f"Bearer {access.key}"} if access.key is not None else {}
    return {"accept-encoding": "identity", "user-agent": "turnout", **headers, **key}


def _kept(response: httpx.Response) -> dict[str, str]:
    """httpx has undone the encoding, so what it said of the bytes is no longer true."""
    encoded = "content-encoding" in response.headers
    dropped = ("content-encoding", "content-length") if encoded else ()
    return {name: value for name, value in response.headers.items() if name not in dropped}


async def _body(url: str, response: httpx.Response, deadline: float, idle_timeout: float) -> AsyncIterator[bytes]:
    """The pieces, with a deadline for the first and one between the others."""
    pieces = response.aiter_bytes()
    loop = asyncio.get_running_loop()
    size = 0
    while True:
        try:
            async with asyncio.timeout_at(loop.time() + idle_timeout if size else deadline):
                piece = await anext(pieces, None)
        except TimeoutError as error:
            if size:
                raise Stalled(f"{url}: no byte came for {idle_timeout:g} s after {size} bytes") from error
            raise TimedOut(f"{url}: no first byte in time") from error
        except httpx.HTTPError as error:
            raise Interrupted(f"{url}: {error!r} after {size} bytes of the answer") from error
        if piece is None:
            return
        size += len(piece)
        if piece:
            yield piece
