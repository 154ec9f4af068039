"""What the data plane asks of an HTTP client: one request, and the truth of how far it got."""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from backends.types import Access


class RawReply(msgspec.Struct, frozen=True):
    """An HTTP response whose head has arrived. Header names are lower-case, repeated ones joined by a comma.

    `body` yields non-empty pieces, decompressed if they had to be, and raises `Interrupted` where the server broke off
    (`TimedOut` where not even a first byte came in time).
    """

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]


class Document(msgspec.Struct, frozen=True):
    """A whole small HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Upstream(Protocol):
    """The data plane's transport: `WireUpstream` by default, `HttpxUpstream` where a pool needs a proxy or HTTP/2."""

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
        """Send, and yield once the head is there; leaving the context before the body's end closes the socket at once.

        `first_byte_timeout`: seconds from here to the first body byte; `idle_timeout`: seconds between body bytes.
        Raises Unreachable, Overloaded (too many connections), Broken, TimedOut.
        """
        ...

    async def get(self, url: str, headers: Mapping[str, str], *, access: Access, timeout: float) -> Document:  # noqa: ASYNC109  one deadline for the whole request
        """Fetch a small document whole, within `timeout` seconds. Raises BackendError."""
        ...

    async def aclose(self) -> None:
        """Close every connection; requests still running are broken off."""
        ...


def trust(ca: str | None) -> ssl.SSLContext:
    """The TLS context that believes this PEM bundle (None: the system's). Raises OSError, ssl.SSLError."""
    return ssl.create_default_context(cafile=ca)
