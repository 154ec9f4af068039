"""Knowing when a client leaves: its request is ended then, at the model server too."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol, Self, cast

from litestar.types import Receive, Scope
from typing_extensions import override

EXTENSION: Final = "turnout.departure"  # where a scope holds what our own protocol tells
SEND_LIMIT = 60.0  # seconds that a piece may wait for a client that does not read

_log = logging.getLogger("turnout.api")


class Departure(Protocol):
    """Tells once when a client has left."""

    def watch(self, call: Callable[[], None]) -> None:
        """Have `call` called when it leaves, soon if it has."""
        ...

    def ignore(self) -> None:
        """What it does is of no more interest."""
        ...


def departure(scope: Scope, receive: Receive) -> Departure:
    """Of the client of this request, whose body has been read. Other servers than ours only tell who asks them."""
    extensions = cast("Mapping[str, Mapping[str, Departure] | None]", scope).get("extensions") or {}
    return extensions.get(EXTENSION) or _Asked(receive)


class _Asked:
    """Waits for the message that a client has left, in a task of its own."""

    __slots__ = ("_receive", "_task")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[None] | None = None

    def watch(self, call: Callable[[], None]) -> None:
        self._task = asyncio.ensure_future(self._wait(call))

    def ignore(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _wait(self, call: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        call()


class Presence(AbstractContextManager["Presence"]):
    """Cancels the block when the client leaves, and ends it quietly then; also when it reads nothing for SEND_LIMIT.

    To be told when a piece is being sent. A cancellation from elsewhere passes through.
    """

    __slots__ = ("_departure", "_gone", "_loop", "_since", "_timer", "_work")

    def __init__(self, departure: Departure) -> None:
        self._departure = departure
        self._gone = False
        self._since: float | None = None  # when the piece that is being sent began to wait for the client
        self._timer: asyncio.TimerHandle | None = None

    @override
    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        work = asyncio.current_task()
        assert work is not None  # noqa: S101  an ASGI application always runs in a task
        self._work = work
        self._departure.watch(self._leave)
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._departure.ignore()
        if self._timer is not None:
            self._timer.cancel()
        return self._gone and isinstance(error, asyncio.CancelledError) and self._work.uncancel() == 0

    def began(self) -> None:
        """A piece is being sent: from here on its client has SEND_LIMIT to take it."""
        self._since = self._loop.time()
        if self._timer is None:
            self._look()

    def ended(self) -> None:
        self._since = None

    def _leave(self) -> None:
        if not self._gone:
            self._gone = True
            self._work.cancel()

    def _look(self) -> None:
        """One timer for a request, moved when it fires."""
        if self._since is not None and self._loop.time() - self._since >= SEND_LIMIT:
            _log.warning("a client has read nothing for %g s: its request is ended", SEND_LIMIT)
            self._leave()
        else:
            self._timer = self._loop.call_later(SEND_LIMIT / 2, self._look)
