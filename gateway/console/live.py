"""One stream of pictures to all open pages: looked at once a second for everybody, and only while somebody looks."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import msgspec

from gateway.control.overview import Overview


class Live:
    """Shares one look among all who watch. A slow page skips pictures; it never makes others wait."""

    def __init__(self, look: Callable[[], Awaitable[Overview]], interval: float = 1.0) -> None:
        self._look = look
        self._interval = interval
        self._watching: set[asyncio.Queue[bytes | None]] = set()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Yield an endless stream of server-sent events, the first one at once."""
        mine: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        self._watching.add(mine)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            mine.put_nowait(event(await self._look()))
            yield _each(mine)
        finally:
            self._watching.discard(mine)
            if not self._watching:
                await self.close()

    def end(self) -> None:
        """The gateway is about to leave: every stream ends after what it has."""
        for page in self._watching:
            _replace(page, None)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            picture = event(await self._look())
            for page in self._watching:
                _replace(page, picture)


def _replace(page: asyncio.Queue[bytes | None], picture: bytes | None) -> None:
    if page.full():
        page.get_nowait()
    page.put_nowait(picture)


async def _each(pictures: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
    while (picture := await pictures.get()) is not None:
        yield picture


def event(picture: Overview) -> bytes:
    return b"event: overview\ndata: " + msgspec.json.encode(picture) + b"\n\n"
