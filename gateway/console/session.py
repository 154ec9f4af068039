"""Letting operators in: a console token, kept in the browser as a cookie that only this gateway can have made."""

import hashlib
import hmac
from typing import Final
from urllib.parse import urlsplit

import msgspec
from typing_extensions import override

COOKIE: Final = "turnout_console"


class Door(msgspec.Struct, frozen=True):
    """`token` None: nobody is let in. What the browser keeps is derived from the token and does not reveal it."""

    token: str | None

    @override
    def __repr__(self) -> str:
        return "Door(shut)" if self.shut else "Door(token=...)"

    @property
    def shut(self) -> bool:
        return not self.token

    @property
    def cookie(self) -> str:
        return hashlib.sha256(b"turnout console session\0" + _bytes(self.token or "")).hexdigest()

    def opens(self, token: str) -> bool:
        return not self.shut and hmac.compare_digest(_bytes(token), _bytes(self.token or ""))

    def knows(self, cookie: str | None) -> bool:
        return not self.shut and cookie is not None and hmac.compare_digest(_bytes(cookie), _bytes(self.cookie))


def from_here(origin: str | None, host: str | None) -> bool:
    """Whether what changes something was sent by a page of this gateway, or by no page at all.

    Browsers name the page's origin on every POST; behind a proxy this needs the Host header passed on as it was.
    """
    if origin is None:
        return True
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == (host or "").lower()
    except ValueError:  # not a URL
        return False


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
