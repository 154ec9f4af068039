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
REFUSED: Final = 2  # exit status of a command whose settings cannot work
LOOK_BACK: Final = 200  # lines of a dead part's log that are looked through
TOLD: Final = 5  # ... of which so many are shown


class Part(msgspec.Struct, frozen=True):
    """One program of ours. `grace`: seconds it gets to leave by itself, once those named in `after` have left."""

    name: str
    argv: tuple[str, ...]
    log: Path
    grace: float
    after: tuple[str, ...] = ()
    environ: Mapping[str, str] | None = None  # None: our own


class _Said(msgspec.Struct, frozen=True):
    """What of a log line is for people."""

    level: str = ""
    message: str = ""


class _End(msgspec.Struct, frozen=True):
    """How a process ended, and its last words. `final`: it refused its settings, and would again."""

    how: str
    last: tuple[str, ...] = ()
    final: bool = False


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
            end = await self._run(place)
            if self._stopping:
                return
            if end.final:
                self._tell(f"{part.name} cannot start: {end.last[-1] if end.last else end.how}")
                self.failed.set()
                return
            ended, last = end.how, "".join(f"\n    {line[:300]}" for line in end.last)
            failures = 1 if time.monotonic() - began > STEADY else failures + 1
            if failures >= GIVE_UP:
                self._tell(f"{part.name} {ended}, {failures} times in a row; giving up. Its log: {part.log}{last}")
                self.failed.set()
                return
            pause = pause_after(failures)
            self._tell(f"{part.name} {ended}; starting it again in {pause:.1f} s. Its log: {part.log}{last}")
            await first(asyncio.sleep(pause), place.leave.wait())

    async def _run(self, place: _Place) -> _End:
        """One process from its start to its end."""
        try:
            async with child(place.part.argv, place.part.log, place.part.environ) as process:
                place.process = process
                ended = await first(process.exited(), place.leave.wait())
                if not isinstance(ended, str):
                    await process.stop(place.part.grace)
                    return _End("was stopped")
                return _End(ended, troubles(process.last_lines(LOOK_BACK)), final=process.code == REFUSED)
        except OSError as error:
            return _End(f"cannot be started: {error}")


def troubles(lines: Sequence[str]) -> tuple[str, ...]:
    """Of what a part printed at last: warnings and errors of its log in plain words, and what is no log line."""
    return tuple(line for line in map(_plain, lines) if line)[-TOLD:]


def _plain(line: str) -> str:
    if not line.startswith("{"):
        return line.removeprefix("turnout: ")
    try:
        said = msgspec.json.decode(line, type=_Said)
    except msgspec.MsgspecError:
        return line
    return said.message if said.level in ("warning", "error", "critical") else ""
