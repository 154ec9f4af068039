"""The health and load of every replica, by probing it; and the rows that say so."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Literal, Self

import msgspec

from backends.errors import BackendError, Unreachable
from backends.types import Access, Backend, Load, Replica, ReplicaId
from gateway.control.fleet.protocol import Unit
from gateway.db.engine import Database
from gateway.db.repositories import replicas
from gateway.db.rows import ReplicaRow, ReplicaState
from gateway.settings import PoolSettings

FAILURES: Final = 3  # probes in a row that must fail before a ready replica is taken out
PROBE_TIMEOUT: Final = 5.0  # seconds
EAGER: Final = 0.1  # seconds between probes of a replica that has just begun to listen
HUNG: Final = 120.0  # seconds without one good probe after which a process is taken for dead
OK: Final = 200
REFUSALS: Final = (401, 403)
EAGER_FOR: Final = 10.0  # seconds; after that as often as any other

AskModel = Callable[[Replica], Awaitable[str]]


class Health(msgspec.Struct, frozen=True):
    """What the probes of one process say: `joining` until the first good one, and again after three bad ones."""

    state: Literal["joining", "ready"] = "joining"
    failures: int = 0
    reason: str = "not probed yet"


def judged(health: Health, outcome: Load | str | None) -> Health:
    """The health after one more probe: its load, None for "alive, still loading", or why it failed."""
    if isinstance(outcome, Load):
        return Health("ready", 0, "")
    reason = "loading" if outcome is None else outcome
    failures = health.failures + 1
    if health.state == "ready" and failures < FAILURES:
        return Health("ready", failures, reason)
    return Health("joining", failures, reason)


class _Watched:
    """One replica under watch; `unit` changes with its phases, `task` probes while it runs."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.health = Health()
        self.load = Load()
        self.served_model = ""
        self.task: asyncio.Task[None] | None = None
        self.row: ReplicaRow | None = None  # as last written
        self.good_at = 0.0  # its last good probe, or when probing began


class Watch:
    """Follows the units of the fleets: each one that runs is probed, and `write` puts what is known into rows.

    `changed` is called when a replica's state may have changed, so that the rows need not wait for the next round.
    `clock` is the wall clock in Unix seconds. Leaving the context ends all probing; it removes no rows.
    """

    def __init__(
        self,
        pools: Mapping[str, PoolSettings],
        accesses: Mapping[str, Access],
        backends: Mapping[str, Backend],
        *,
        ask_model: AskModel,
        interval: float,
        changed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._pools = pools
        self._accesses = accesses
        self._backends = backends
        self._ask_model = ask_model
        self._interval = interval
        self._changed = changed
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._gone: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [watched.task for watched in self._watched.values() if watched.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def follow(self, units: Sequence[Unit]) -> None:
        """Take in what the fleets have now."""
        present = {unit.id: unit for unit in units}
        for name in set(self._watched) - set(present):
            self._rest(self._watched.pop(name))
            self._gone.add(name)
        for name, unit in present.items():
            watched = self._watched.setdefault(name, _Watched(unit))
            self._gone.discard(name)
            if unit.incarnation != watched.unit.incarnation:
                self._rest(watched)
                watched.health, watched.load, watched.served_model = Health(), Load(), ""
            watched.unit = unit
            if unit.phase != "running":
                self._rest(watched)
            elif watched.task is None:
                watched.good_at = self._clock()
                watched.task = asyncio.create_task(self._probe(watched), name=f"probe {name}")

    def ready(self, pool: str) -> list[Load]:
        """The last load of each ready replica of a pool."""
        return [one.load for one in self._of(pool) if _state(one)[0] == "ready"]

    def hung(self) -> list[str]:
        """Replicas whose process runs and that have not passed a probe for long: only a new process can help."""
        now = self._clock()
        return [name for name, one in self._watched.items() if one.task is not None and now - one.good_at > HUNG]

    async def write(self, db: Database) -> None:
        """Bring the rows up to what is known; only what has changed is written. Raises Unavailable."""
        gone = sorted(self._gone)
        await replicas.remove(db, gone)
        self._gone.difference_update(gone)
        loads: dict[str, Load] = {}
        for watched in tuple(self._watched.values()):
            row = self._row(watched)
            if watched.row is None or _without_load(row) != _without_load(watched.row):
                await replicas.put(db, row)
            elif row != watched.row:
                loads[row.id] = watched.load
            watched.row = row
        await replicas.update_load(db, loads)

    def _of(self, pool: str) -> list[_Watched]:
        return [watched for watched in self._watched.values() if watched.unit.pool == pool]

    def _rest(self, watched: _Watched) -> None:
        if watched.task is not None:
            watched.task.cancel()
            watched.task = None

    async def _probe(self, watched: _Watched) -> None:
        began = time.monotonic()
        while True:
            before = watched.health
            watched.health = judged(before, await self._outcome(watched))
            if watched.health.state != before.state:
                self._changed()
            eager = watched.health.state == "joining" and time.monotonic() - began < EAGER_FOR
            await asyncio.sleep(min(EAGER, self._interval) if eager else self._interval)

    async def _outcome(self, watched: _Watched) -> Load | str | None:
        """What one probe brings; a replica whose model's name is not known yet is asked for it first."""
        unit = watched.unit
        replica = self._replica(watched)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                load = await self._backends[self._pools[unit.pool].backend_name].probe(replica)
                if load is not None and not replica.served_model:
                    watched.served_model = await self._ask_model(replica)
        except BackendError as error:
            return asked(unit, str(error) or type(error).__name__)
        except TimeoutError:
            return f"{unit.url} gave no answer to a probe in {PROBE_TIMEOUT:.0f} s"
        if load is not None:
            watched.load, watched.good_at = load, self._clock()
        return load

    def _replica(self, watched: _Watched) -> Replica:
        unit, entry = watched.unit, self._pools[watched.unit.pool]
        return Replica(
            id=ReplicaId(unit.id),
            url=unit.url,
            served_model=watched.served_model or _named(unit.pool, entry),
            slots=entry.slots_each,
            incarnation=unit.incarnation,
            access=self._accesses.get(unit.pool, Access()),
        )

    def _row(self, watched: _Watched) -> ReplicaRow:
        unit, before = watched.unit, watched.row
        state, reason = _state(watched)
        replica = self._replica(watched)
        load = watched.load if state == "ready" else Load()
        return ReplicaRow(
            id=unit.id,
            pool=unit.pool,
            url=unit.url,
            served_model=replica.served_model,
            incarnation=unit.incarnation,
            slots=replica.slots,
            state=state,
            pid=unit.pid,
            running=load.running,
            waiting=load.waiting,
            kv_used=load.kv_used,
            reason=reason,
            changed_at=before.changed_at if before and before.state == state else self._clock(),
        )


def _named(pool: str, entry: PoolSettings) -> str:
    """The model's name as far as the settings say: our own servers are started under the pool's name."""
    return entry.model or (pool if entry.ours else "")


def asked(unit: Unit, words: str) -> str:
    """Why a probe failed, with the whole URL that was asked in place of the replica's name or the path alone."""
    words = words.removeprefix(f"{unit.id}: ")
    if unit.url in words:
        return words
    return f"{unit.url}{words}" if words.startswith("/") else f"{unit.url}: {words}"


def _state(watched: _Watched) -> tuple[ReplicaState, str]:
    unit = watched.unit
    match unit.phase:
        case "running":
            return watched.health.state, watched.health.reason
        case "draining":
            return "draining", unit.reason
        case "starting":
            return "joining", unit.reason or "starting"
        case _:
            return "gone", unit.reason  # no process now; the fleet will try again


def _without_load(row: ReplicaRow) -> ReplicaRow:
    return msgspec.structs.replace(row, running=0, waiting=0, kv_used=None)


def model_of(document: bytes, *, url: str, status: int = 200) -> str:
    """The first model that a server's /v1/models (asked as `url`) names. Raises Unreachable where it names none."""
    if status != OK:
        hint = "; say `key`, `key_env` or `key_file` in the pool's settings" if status in REFUSALS else ""
        raise Unreachable(f"{url} answered {status}{hint}")
    try:
        listing = msgspec.json.decode(document, type=_Models)
    except msgspec.DecodeError as error:
        raise Unreachable(f"{url} is not understood; say `model` in the pool's settings") from error
    if not listing.data:
        raise Unreachable(f"{url} is empty; say `model` in the pool's settings")
    return listing.data[0].id


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...] = ()
