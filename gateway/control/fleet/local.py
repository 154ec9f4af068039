"""Replicas as child processes on this machine."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gateway.control.fleet.child import Child, NotReady, child, first, pause_after
from gateway.control.fleet.protocol import Launch, Phase, Unit
from gateway.control.fleet.room import Machine, refusal, this_machine

READY: Final = "listening on "
LOOK_AGAIN: Final = 2.0  # seconds until a replica that found no room asks again
STEADY: Final = 30.0  # seconds of service after which an end no longer counts as one in a row
STOP_MARGIN: Final = 5.0  # seconds past its own drain time before a replica is killed


class _Place:
    """A place for one replica, in which processes come and go."""

    def __init__(self, name: str, pool: str, launch: Launch, changed: Callable[[], None]) -> None:
        self.unit = Unit(name, pool, "waiting")
        self.launch = launch
        self._changed = changed
        self.leave = asyncio.Event()
        self.keeper: asyncio.Task[None] | None = None

    def show(self, phase: Phase, *, reason: str = "", process: Child | None = None, url: str = "") -> None:
        now = self.unit
        incarnation, pid = (process.incarnation, process.pid) if process else ("", None)
        self.unit = Unit(now.id, now.pool, phase, url=url, incarnation=incarnation, reason=reason, pid=pid)
        if self.unit != now:
            self._changed()

    async def pause(self, seconds: float) -> None:
        """Sleep, but no longer than until this replica is to leave."""
        await first(asyncio.sleep(seconds), self.leave.wait())


class LocalFleet:
    """Starts, keeps, drains and stops replicas. Leaving its context stops them all.

    `settle`: seconds between the moment a replica is shown as draining and its SIGTERM, in which gateways
    learn that it goes. `machine` says what there is to be had. `changed` is called at every change of a unit.
    """

    def __init__(
        self,
        logs: Path,
        *,
        settle: float = 1.0,
        machine: Callable[[], Machine] = this_machine,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._logs = logs
        self._changed = changed
        self._settle = settle
        self._machine = machine
        self._places: dict[str, _Place] = {}

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Everything leaves at once; nobody is asked to choose another replica any more."""
        self._settle = 0.0
        places = tuple(self._places.values())
        for place in places:
            place.leave.set()
        await asyncio.gather(*(place.keeper for place in places if place.keeper), return_exceptions=True)

    async def observe(self) -> Sequence[Unit]:
        return tuple(place.unit for place in self._places.values())

    async def scale(self, pool: str, replicas: int, launch: Launch | None) -> None:
        staying = [p for p in self._places.values() if p.unit.pool == pool and not p.leave.is_set()]
        for place in staying:
            place.launch = launch or place.launch
        for place in sorted(staying, key=_least_useful)[: max(0, len(staying) - replicas)]:
            place.leave.set()
        if launch is not None:
            for _ in range(replicas - len(staying)):
                self._open(pool, launch)

    async def drain(self, replica: str) -> None:
        if place := self._places.get(replica):
            place.leave.set()

    def _open(self, pool: str, launch: Launch) -> None:
        name = next(
            name for number in range(1, len(self._places) + 2) if (name := f"{pool}-{number}") not in self._places
        )
        place = self._places[name] = _Place(name, pool, launch, self._changed)
        place.keeper = asyncio.create_task(self._keep(place), name=f"replica {name}")

    async def _keep(self, place: _Place) -> None:
        """Have a process in this place until it is to leave: a dead one is replaced, later each time."""
        failures = 0
        try:
            while not place.leave.is_set():
                if why := self._no_room(place):
                    place.show("waiting", reason=why)
                    await place.pause(LOOK_AGAIN)
                    continue
                began = time.monotonic()
                reason = await self._run(place)
                failures = 1 if time.monotonic() - began > STEADY else failures + 1
                if not place.leave.is_set():
                    place.show("backoff", reason=f"{reason}; next start in {pause_after(failures):.1f} s")
                    await place.pause(pause_after(failures))
        finally:
            del self._places[place.unit.id]
            self._changed()

    async def _run(self, place: _Place) -> str:
        """One process from its start to its end; says how it ended."""
        try:
            environ = {**os.environ, **place.launch.environ}
            async with child(place.launch.argv, self._logs / f"{place.unit.id}.log", environ) as process:
                place.show("starting", process=process)
                try:
                    return await self._serve(place, process)
                except NotReady as error:
                    return _with_log(str(error), process)
        except OSError as error:
            return f"cannot be started: {error}"

    async def _serve(self, place: _Place, process: Child) -> str:
        launch = place.launch
        url = await first(process.printed(READY, within=launch.start_timeout), place.leave.wait())
        if isinstance(url, str):
            place.show("running", process=process, url=url.rstrip("/"))
            ended = await first(process.exited(), place.leave.wait())
            if isinstance(ended, str):
                return _with_log(ended, process)
            place.show("draining", process=process, url=url.rstrip("/"))
            await asyncio.sleep(self._settle)
        await process.stop(launch.drain + STOP_MARGIN)
        return "stopped"

    def _no_room(self, place: _Place) -> str | None:
        others = [other for other in self._places.values() if other is not place]
        running = _launches(others, "running", "draining")
        return refusal(place.launch, running, _launches(others, "starting"), self._machine())


def _launches(places: Iterable[_Place], *phases: Phase) -> list[Launch]:
    return [place.launch for place in places if place.unit.phase in phases]


def _least_useful(place: _Place) -> tuple[bool, int]:
    """Those that do not run go first, then the youngest."""
    return (place.unit.phase == "running", -int(place.unit.id.rpartition("-")[2]))


def _with_log(how: str, process: Child) -> str:
    last = process.last_lines(1)
    return f"{how}: {last[0][:200]}" if last else how
