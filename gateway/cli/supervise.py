"""Keeping the parts of Turnout running as children of one command, and stopping them in order."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gateway.control.fleet.child import Child, child, first, pause_after

STEADY: Final = 20.0  # seconds of life after which an end no longer counts as one in a row
GIVE_UP: Final = 4  # ends in a row


class Part(msgspec.Struct, frozen=True):
    """One program of ours. `grace`: seconds it gets to leave by itself, once those named in `after` have left."""

    name: str
    argv: tuple[str, ...]
    log: Path
    grace: float
    after: tuple[str, ...] = ()
    environ: Mapping[str, str] | None = None  # None: our own


class _Place:
    def __init__(self, part: Part) -> None:
        self.part = part
        self.leave = asyncio.Event()
        self.process: Child | None = None
        self.keeper: asyncio.Task[None] | None = None


class Supervisor:
    """Starts parts together, starts a dead one again, and stops them in the order they need.

    `tell` gets what a person should know. `failed` is set when a part keeps dying; then it is time to stop.
    """

    def __init__(self, parts: Sequence[Part], tell: Callable[[str], None]) -> None:
        self._places = tuple(_Place(part) for part in parts)
        self._tell = tell
        self._stopping = False
        self.failed = asyncio.Event()

    def start(self) -> None:
        for place in self._places:
            place.keeper = asyncio.create_task(self._keep(place), name=place.part.name)

    async def stop(self) -> None:
        """Every part leaves as soon as those have left that still need it."""
        self._stopping = True
        await asyncio.gather(*(self._leave(place) for place in self._places))

    async def kill(self) -> None:
        """Everything ends now."""
        self._stopping = True
        for place in self._places:
            place.leave.set()
        for place in self._places:
            if place.process is not None:
                await place.process.kill()
        await asyncio.gather(*(place.keeper for place in self._places if place.keeper), return_exceptions=True)

    async def _leave(self, place: _Place) -> None:
        before = [other.keeper for other in self._places if other.part.name in place.part.after]
        await asyncio.gather(*(keeper for keeper in before if keeper))
        place.leave.set()
        if place.keeper is not None:
            await place.keeper

    async def _keep(self, place: _Place) -> None:
        part, failures = place.part, 0
        while not self._stopping:
            began = time.monotonic()
            ended, last = await self._run(place)
            if self._stopping:
                return
            failures = 1 if time.monotonic() - began > STEADY else failures + 1
            if failures >= GIVE_UP:
                self._tell(f"{part.name} {ended}, {failures} times in a row; giving up. Its log: {part.log}{last}")
                self.failed.set()
                return
            pause = pause_after(failures)
            self._tell(f"{part.name} {ended}; starting it again in {pause:.1f} s. Its log: {part.log}{last}")
            await first(asyncio.sleep(pause), place.leave.wait())

    async def _run(self, place: _Place) -> tuple[str, str]:
        """One process from its start to its end: how it ended, and its last lines, each on a line of its own."""
        try:
            async with child(place.part.argv, place.part.log, place.part.environ) as process:
                place.process = process
                ended = await first(process.exited(), place.leave.wait())
                if not isinstance(ended, str):
                    await process.stop(place.part.grace)
                    return "was stopped", ""
                return ended, "".join(f"\n    {line[:300]}" for line in process.last_lines())
        except OSError as error:
            return f"cannot be started: {error}", ""
