"""The scope of one request: from its first stage until all that it began has ended and is noted."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from typing_extensions import override

from backends.types import Reply
from gateway.serve.trail import Trail

T = TypeVar("T")


class Held:
    """The scopes that a request has entered, to be left the other way round; none of them swallows an error.

    `contextlib.AsyncExitStack` at a third of its cost, which every request pays.
    """

    __slots__ = ("_exits",)

    def __init__(self) -> None:
        self._exits: list[tuple[Callable[..., Any], bool]] = []  # and whether it is to be awaited

    def __len__(self) -> int:
        return len(self._exits)

    def enter(self, scope: AbstractContextManager[T]) -> T:
        value = scope.__enter__()
        self._exits.append((scope.__exit__, False))
        return value

    async def enter_async(self, scope: AbstractAsyncContextManager[T]) -> T:
        value = await scope.__aenter__()
        self._exits.append((scope.__aexit__, True))
        return value

    def then(self, call: Callable[[], object]) -> None:
        """Have `call` called when its turn to be left comes."""
        self._exits.append((lambda *_: call(), False))

    async def leave(self, error: BaseException | None, down_to: int = 0) -> None:
        """Leave all but the first `down_to`, because of `error` or None. Raises what came up on the way."""
        worse = error
        while len(self._exits) > down_to:
            leave, awaited = self._exits.pop()
            try:
                left = leave(type(worse) if worse else None, worse, worse.__traceback__ if worse else None)
                if awaited:
                    await left
            except BaseException as new:  # noqa: BLE001  the others are to be left all the same
                worse = new
        if worse is not None and worse is not error:
            raise worse


class Life(AbstractAsyncContextManager[Reply]):
    """Gives what `begin` does; on leaving, ends what it entered into its stack, then calls `finish`, once in any case.

    A class and no generator: event loops keep a register of the asynchronous generators that are open.
    """

    __slots__ = ("_begin", "_finish", "_held", "_trail")

    def __init__(
        self, trail: Trail, begin: Callable[[Held], Awaitable[Reply]], finish: Callable[[Trail], None]
    ) -> None:
        self._trail = trail
        self._begin = begin
        self._finish = finish
        self._held = Held()

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
            await self._held.leave(error)
        except BaseException as worse:
            error = worse
            raise
        finally:
            if isinstance(error, Exception):
                trail.failed(error)
            elif error is not None:
                trail.outcome = "cancelled"
            self._finish(trail)
