"""One stream of pictures to all open pages: looked at once a second for everybody, and only while somebody looks."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from litestar.types import Receive, Send

from gateway.control.picture import Moment, Overview

_log = logging.getLogger("turnout.console")

Look = Callable[[], Coroutine[Any, Any, Overview]]
History = Callable[[], AsyncIterator[Moment]]


class Page:
    """One open page: it holds at most one picture that was not sent yet, the newest."""

    def __init__(self) -> None:
        self._next: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)

    def show(self, picture: bytes | None) -> None:
        """None: there are no more."""
        if self._next.full():
            self._next.get_nowait()
        self._next.put_nowait(picture)

    async def pictures(self) -> AsyncIterator[bytes]:
        while (picture := await self._next.get()) is not None:
            yield picture


class Live:
    """Shares one look among all who watch. A slow page skips pictures; it never makes others wait."""

    def __init__(self, look: Look, history: History, interval: float = 1.0) -> None:
        self._look = look
        self._history = history
        self._interval = interval
        self._pages: set[Page] = set()
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[Page]:
        """Yield a page that gets server-sent events: the last minutes and a picture at once, then each new picture."""
        page = Page()
        first = await self._first()
        self._pages.add(page)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="console pictures")
        try:
            page.show(None if self._ended else first)
            yield page
        finally:
            self._pages.discard(page)
            if not self._pages:
                await self._rest()

    def end(self) -> None:
        """The gateway is about to leave: every stream ends, and new ones end at once."""
        self._ended = True
        for page in self._pages:
            page.show(None)

    async def _first(self) -> bytes:
        moments = [moment async for moment in self._history()]
        return event("history", moments) + event("overview", await self._look())

    async def _rest(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while not self._ended:
            await asyncio.sleep(self._interval)
            try:
                picture = event("overview", await self._look())
            except Exception:  # noqa: BLE001  one failed look must not freeze every page
                _log.exception("The console's picture cannot be drawn; the next is tried in %.0f s.", self._interval)
                continue
            if not self._ended:
                for page in self._pages:
                    page.show(picture)


def event(name: str, value: object) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"


async def send_pictures(page: Page, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send) -> None:
    """Answer with the page's pictures until they end or the browser has left."""
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    leaving = asyncio.create_task(_end_when_gone(page, receive), name="console page")
    try:
        async for picture in page.pictures():
            await send({"type": "http.response.body", "body": picture, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await leaving


async def _end_when_gone(page: Page, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    page.show(None)
