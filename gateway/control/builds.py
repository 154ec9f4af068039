"""Engine builds: asked for once a recipe, done by whichever worker claims the row, taken over from a dead one.

The row is the truth and the message only wakes a worker, so a message too many does no harm.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from engines.recipe import Recipe
from gateway.control.owner import alive
from gateway.db.engine import Database
from gateway.db.errors import DatabaseError
from gateway.db.repositories import artefacts, builds
from gateway.db.rows import ArtefactRow, BuildRow

TICK = 0.25  # seconds between looks at a running build
HEARTBEAT = 2.0  # seconds between signs of life of a build that says nothing; a wish to cancel is seen as late
DEATHS = 3  # workers that may die over one build before it counts as failed
RETRY = 1.0  # seconds between tries to write how a build ended

Clock = Callable[[], float]
Send = Callable[[str], None]  # puts the digest into the queue; may block; raises QueueUnreachable


class QueueUnreachable(Exception):
    """The broker does not take messages; the build is not in the queue."""


class UnknownBuild(Exception):
    """There is no build of this digest."""


class Work(Protocol):
    """What makes an artefact out of a recipe, in a thread of its own; raises where it cannot."""

    def __call__(
        self,
        recipe: dict[str, Any],
        *,
        on_progress: Callable[[float, str], None],
        cancelled: Callable[[], bool],
        log: Path,
    ) -> ArtefactRow: ...


async def request_build(
    db: Database, recipe: Recipe, send: Send, *, pool: str | None, now: float, again: bool = False
) -> BuildRow:
    """See that the recipe is built; the row as it stands now. Asking twice is asking once.

    A build that ended stays as it is (done, failed, cancelled) unless `again` is set. Raises QueueUnreachable,
    DatabaseError.
    """
    digest = recipe.digest
    if await builds.enqueue(db, digest, msgspec.to_builtins(recipe), pool=pool, now=now, again=again):
        try:
            await asyncio.to_thread(send, digest)
        except QueueUnreachable:
            await builds.withdraw(db, digest)
            raise
    return await _existing(db, digest)


async def watch(db: Database, digest: str, *, interval: float = TICK) -> AsyncGenerator[BuildRow, None]:
    """The build as it is, and again whenever it has changed, until it has ended. Raises UnknownBuild."""
    before: BuildRow | None = None
    while before is None or before.open:
        row = await _existing(db, digest)
        if before is None or _told(row) != _told(before):
            yield row
        before = row
        if row.open:
            await asyncio.sleep(interval)


async def recover(db: Database, send: Send, *, now: float) -> list[str]:
    """Put back what a dead worker held, and send every queued build again; their digests. For a worker that starts."""
    for row in await builds.list_all(db, ["running"]):
        if not alive(row.owner, row.heartbeat_at, now):
            await _take_from_dead(db, row, now)
    waiting = [row.digest for row in reversed(await builds.list_all(db, ["queued"]))]
    for digest in waiting:
        await asyncio.to_thread(send, digest)
    return waiting


class Builder(msgspec.Struct, frozen=True):
    """One worker's way of building. `stopping`: the worker is asked to leave; a build goes back into the queue."""

    db: Database
    work: Work
    owner: str
    logs: Path
    clock: Clock
    stopping: Callable[[], bool]

    async def perform(self, digest: str) -> Literal["ended", "not mine", "put back", "later"]:
        """Build it, if it waits to be built or its worker died.

        "later": another host's worker seems to be at it; look again. "put back": this worker was asked to leave, and
        somebody else must be told.
        """
        row = await self._claim(digest)
        if row is None:
            now = self.clock()
            other = await builds.get(self.db, digest)
            held = other is not None and other.state == "running" and other.owner != self.owner
            return "later" if held and other and alive(other.owner, other.heartbeat_at, now) else "not mine"
        log = logging.getLogger("turnout.builds")
        log.info("build %s starts (attempt %d); its log: %s", digest, row.attempts, row.log)
        running = _Running(self, row)
        try:
            artefact = await running.result()
        except Exception as error:  # noqa: BLE001  whatever a build raises is how that build ended
            if running.left:
                await self._insist(lambda: builds.release(self.db, digest, owner=self.owner, now=self.clock()))
                log.info("build %s goes back into the queue", digest)
                return "put back"
            log.warning("build %s ended: %s", digest, error)
            words = str(error) or type(error).__name__
            await self._insist(lambda: builds.fail(self.db, digest, owner=self.owner, message=words, now=self.clock()))
            return "ended"
        await self._insist(lambda: self._done(artefact))
        log.info("build %s is done: %s", digest, artefact.file)
        return "ended"

    async def _claim(self, digest: str) -> BuildRow | None:
        now = self.clock()
        row = await builds.get(self.db, digest)
        if row is not None and row.state == "running" and not alive(row.owner, row.heartbeat_at, now):
            await _take_from_dead(self.db, row, now)
        log = str(self.logs / f"{digest}.log")
        return await builds.start(self.db, digest, owner=self.owner, log=log, now=now)

    async def _done(self, artefact: ArtefactRow) -> None:
        await artefacts.put(self.db, artefact)
        await builds.finish(self.db, artefact.digest, owner=self.owner, message="done", now=self.clock())

    async def _insist(self, write: Callable[[], Awaitable[object]]) -> None:
        """How a build ended must be written, or nobody would ever touch it again while this worker lives."""
        while True:
            try:
                await write()
            except DatabaseError as error:
                if self.stopping():
                    raise
                logging.getLogger("turnout.builds").warning("the end of a build cannot be written yet: %s", error)
                await asyncio.sleep(RETRY)
            else:
                return


class _Running:
    """A build in its thread, and what it last said."""

    def __init__(self, builder: Builder, row: BuildRow) -> None:
        self._builder = builder
        self._row = row
        self._said = (0.0, "")
        self._cancelled = False
        self.left = False  # ended because the worker leaves

    async def result(self) -> ArtefactRow:
        task = asyncio.create_task(asyncio.to_thread(self._work))
        written, written_at = self._said, self._builder.clock()
        while not task.done():
            await asyncio.wait([task], timeout=TICK)
            if self._builder.stopping() and not task.done():
                self.left = self._cancelled = True
            said, now = self._said, self._builder.clock()
            if said != written or now - written_at >= HEARTBEAT:
                written, written_at = said, now
                await self._report(said, now)
        return await task

    def _work(self) -> ArtefactRow:
        return self._builder.work(
            self._row.recipe,
            on_progress=self._note,
            cancelled=lambda: self._cancelled,
            log=Path(self._row.log),
        )

    def _note(self, progress: float, message: str) -> None:
        self._said = (progress, message)

    async def _report(self, said: tuple[float, str], now: float) -> None:
        db, owner = self._builder.db, self._builder.owner
        try:
            if not await builds.report(db, self._row.digest, owner=owner, progress=said[0], message=said[1], now=now):
                self._cancelled = True
        except DatabaseError as error:
            logging.getLogger("turnout.builds").warning("progress cannot be written: %s", error)


async def _take_from_dead(db: Database, row: BuildRow, now: float) -> None:
    if row.attempts >= DEATHS:
        words = f"{row.attempts} workers died over this build; the last words are in its log"
        await builds.fail(db, row.digest, owner=row.owner, message=words, now=now)
    else:
        await builds.release(db, row.digest, owner=row.owner, now=now, died=True)


async def _existing(db: Database, digest: str) -> BuildRow:
    row = await builds.get(db, digest)
    if row is None:
        raise UnknownBuild(f"There is no build {digest}.")
    return row


def _told(row: BuildRow) -> tuple[object, ...]:
    return (row.state, row.progress, row.message, row.attempts, row.cancel)
