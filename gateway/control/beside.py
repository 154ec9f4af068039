"""A loop that runs beside a block of code, and is stopped between two of its steps, never within one."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress


class Pace:
    """Says when to go on. `hurry` ends the present pause, `stop` every pause from now on."""

    def __init__(self) -> None:
        self._go = asyncio.Event()
        self.stopped = False

    def hurry(self) -> None:
        self._go.set()

    def stop(self) -> None:
        self.stopped = True
        self._go.set()

    async def pause(self, seconds: float) -> None:
        """Wait that long, or until there is reason to hurry."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._go.wait(), seconds)
        if not self.stopped:
            self._go.clear()


@asynccontextmanager
async def beside(run: Callable[[], Awaitable[None]], pace: Pace) -> AsyncGenerator[None, None]:
    """Start `run`, which returns soon after `pace` is stopped; that is done, and waited for, when the block is left.

    A step cut short in a transaction would leave open whether it was committed. Raises what `run` raised.
    """

    async def whole() -> None:
        await run()

    task = asyncio.create_task(whole())
    try:
        yield
    finally:
        pace.stop()
        await task
