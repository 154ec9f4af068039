"""Letting operators in: a console token, kept in the browser as a cookie that only this gateway can have made."""

import hashlib
import hmac
from typing import Final

import msgspec
from typing_extensions import override

COOKIE: Final = "turnout_console"


class Door(msgspec.Struct, frozen=True):
    """`token` None: nobody is let in. What the browser keeps is derived from the token and does not reveal it."""

    token: str | None

    @override
    def __repr__(self) -> str:
        return "Door(token=...)" if self.token else "Door(shut)"

    @property
    def cookie(self) -> str:
        return hashlib.sha256(b"turnout console session\0" + (self.token or "").encode()).hexdigest()

    def opens(self, token: str) -> bool:
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    def knows(self, cookie: str | None) -> bool:
        return (
            self.token is not None and cookie is not None and hmac.compare_digest(cookie.encode(), self.cookie.encode())
        )
