"""The scope of one request: from its first stage until all that it began has ended and is noted."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType

from typing_extensions import override

from backends.types import Reply
from gateway.serve.trail import Trail


class Life(AbstractAsyncContextManager[Reply]):
    """Gives what `begin` does; on leaving, ends what it entered into its stack, then calls `finish`, once in any case.

    A class and no generator: event loops keep a register of the asynchronous generators that are open.
    """

    __slots__ = ("_begin", "_finish", "_held", "_trail")

    def __init__(
        self, trail: Trail, begin: Callable[[AsyncExitStack], Awaitable[Reply]], finish: Callable[[Trail], None]
    ) -> None:
        self._trail = trail
        self._begin = begin
        self._finish = finish
        self._held = AsyncExitStack()

    @override
    async def __aenter__(self) -> Reply:
        try:
            return await self._begin(self._held)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise

    @override
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        trail = self._trail
        if error is None and not trail.meter.finished:
            trail.outcome, trail.error = "interrupted", "stream_incomplete"
        try:
            await self._held.__aexit__(kind, error, trace)
        except BaseException as worse:
            error = worse
            raise
        finally:
            if isinstance(error, Exception):
                trail.failed(error)
            elif error is not None:
                trail.outcome = "cancelled"
            self._finish(trail)
