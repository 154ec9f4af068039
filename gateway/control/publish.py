"""Keeping a gateway's catalog up to date: a look at the version, and a whole new catalog where it has changed."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

from backends.types import Load, ReplicaId
from gateway.control.access import engine_key
from gateway.control.beside import Pace, beside
from gateway.control.snapshot import catalog, static_rows
from gateway.db.engine import Database
from gateway.db.errors import DatabaseError
from gateway.db.repositories import replicas
from gateway.db.rows import ReplicaRow
from gateway.serve.catalog import Catalog
from gateway.settings import Settings, SettingsError

SILENCE = 10.0  # seconds without a sign of life after which a control loop counts as gone


class CatalogPoll:
    """Looks at the version every `control.poll_interval`, at loads every `control.probe_interval`.

    `publish` gets each new catalog, `loads` what the ready servers say of themselves. `clock` is the wall clock, in
    Unix seconds. While the database does not answer, the last catalog stays; at the very start it is what the
    settings alone say. When the control loop is silent, its opinion of servers that are not ours counts no more: they
    are all tried, and the circuit breaker finds out.
    """

    def __init__(
        self,
        db: Database,
        settings: Settings,
        *,
        publish: Callable[[Catalog], None],
        loads: Callable[[Mapping[ReplicaId, Load]], None],
        clock: Callable[[], float],
    ) -> None:
        self._db = db
        self._settings = settings
        self._publish = publish
        self._loads = loads
        self._clock = clock
        self.pace = Pace()
        self._log = logging.getLogger("turnout.publish")
        self._engine_key: str | None = None  # of our own engines; read at the first look
        self._shown: tuple[int, bool] | None = None  # version and whether a control loop stood behind it
        self._looked = 0.0
        self.errors = 0  # looks that failed, ever
        self.failing = False

    async def look(self) -> None:
        """One look; a database that does not answer is noted, not raised. The first look may raise SettingsError."""
        try:
            await self._look()
        except (DatabaseError, SettingsError) as error:
            if self._shown is None and isinstance(error, SettingsError):
                raise
            self.errors += 1
            if not self.failing:
                self._log.warning("The catalog cannot be read; the last one stays in use: %s", error)
            self.failing = True
            if self._shown is None:
                self._show(static_rows(self._settings), (0, False))
        else:
            if self.failing:
                self._log.warning("The catalog can be read again.")
            self.failing = False

    async def run(self) -> None:
        """Look until the pace is stopped."""
        while not self.pace.stopped:
            await self.pace.pause(self._settings.control.poll_interval)
            await self.look()

    async def _look(self) -> None:
        now = self._clock()
        signs = await replicas.signs(self._db)
        # No sign ever: rows were written by something else, or there are none; either way they are what is known.
        steered = signs.beat is None or now - signs.beat < SILENCE
        due = now - self._looked >= self._settings.control.probe_interval or now < self._looked
        if (signs.version, steered) == self._shown and not due:
            return
        picture = await replicas.picture(self._db)
        self._looked = now
        if (picture.version, steered) != self._shown:
            self._show(picture.rows if steered else self._ours(picture.rows), (picture.version, steered))
        self._loads(loads_of(picture.rows))

    def _ours(self, rows: tuple[ReplicaRow, ...]) -> tuple[ReplicaRow, ...]:
        pools = self._settings.pools
        return tuple(row for row in rows if row.pool in pools and pools[row.pool].ours)

    def _show(self, rows: tuple[ReplicaRow, ...], shown: tuple[int, bool]) -> None:
        if self._engine_key is None and any(entry.ours for entry in self._settings.pools.values()):
            self._engine_key = engine_key(self._settings.folder)
        self._publish(catalog(self._settings, rows, shown[0], engine_key=self._engine_key))
        self._shown = shown


def loads_of(rows: tuple[ReplicaRow, ...]) -> dict[ReplicaId, Load]:
    """What ready replicas said of themselves when they were last probed."""
    return {ReplicaId(row.id): Load(row.running, row.waiting, row.kv_used) for row in rows if row.state == "ready"}


@asynccontextmanager
async def polling(poll: CatalogPoll) -> AsyncGenerator[CatalogPoll, None]:
    """Publish a first catalog, then keep looking until the block is left. Raises SettingsError."""
    await poll.look()
    async with beside(poll.run, poll.pace):
        yield poll
