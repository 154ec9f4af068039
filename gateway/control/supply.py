"""What a pool's replicas are started from: the simulator, a file, or an artefact, built where it is missing."""

import asyncio
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from engines import artifact, registry
from engines.errors import EngineError
from engines.recipe import ServeOptions
from engines.registry import AnyRecipe
from gateway.control.access import VARIABLE
from gateway.control.builds import QueueUnreachable, Send, request_build
from gateway.control.fleet.protocol import Launch
from gateway.control.fleet.room import Machine, this_machine
from gateway.db.engine import Database
from gateway.settings import PoolSettings, Settings, SettingsError

LOOK: Final = 0.5  # seconds between looks at an artefact that is not there yet
DRAIN: Final = 10.0  # seconds that running requests get when a replica stops
# Seen with llama.cpp at a context of 8192: 290 to 330 MB over the file's own size, most of it the KV cache.
BESIDE_WEIGHTS: Final = 40_000  # bytes a token of context
SIMULATOR: Final = 64 * 1024 * 1024  # bytes


def recipes_of(pools: Mapping[str, PoolSettings]) -> dict[str, AnyRecipe]:
    """The recipe of each pool that is built. Raises SettingsError where one is wrong or a pool has no model."""
    ours = {name: one for name, one in pools.items() if one.ours and one.maximum > 0 and one.simulated is None}
    for name, entry in ours.items():
        if entry.gguf is None and entry.recipe is None:
            raise SettingsError(f"pools.{name}: say where its answers come from: url, gguf or recipe.")
        if entry.gguf is not None and not Path(entry.gguf).expanduser().is_file():
            raise SettingsError(f"pools.{name}.gguf: there is no file {entry.gguf}.")
    return {
        name: _recipe(name, entry.recipe)
        for name, entry in ours.items()
        if entry.gguf is None and entry.recipe is not None
    }


def digests_of(pools: Mapping[str, PoolSettings]) -> dict[str, str]:
    """The digest of each pool's recipe. Raises SettingsError where one is wrong."""
    return {name: recipe.digest for name, recipe in recipes_of(pools).items()}


def _recipe(pool: str, given: dict[str, Any]) -> AnyRecipe:
    try:
        return registry.decode_recipe(given)
    except EngineError as error:
        raise SettingsError(f"pools.{pool}.recipe: {error}") from error


class Artefacts:
    """Knows how to start each pool of ours, as soon as its weights are there. `send` puts a build into the queue.

    `keys`: what each pool's engines are to ask for. A build that failed is asked for again once in the life of this
    object: whoever starts Turnout anew wants it tried.
    """

    def __init__(
        self,
        settings: Settings,
        db: Database,
        send: Send,
        *,
        keys: Mapping[str, str] | None = None,
        machine: Machine | None = None,
    ) -> None:
        self._pools = settings.pools
        self._keys = keys or {}
        self._threads = threads_each(settings.pools, machine)
        self._recipes = recipes_of(settings.pools)
        self._artefacts = artifact.artefacts_folder(settings.folder)
        self._db = db
        self._send = send
        self._launches: dict[str, Launch] = {}
        self._looked: dict[str, float] = {}
        self._asked: set[str] = set()
        self._log = logging.getLogger("turnout.supply")

    async def launch(self, pool: str, now: float) -> Launch | None:
        """How to start a replica of the pool; None while its weights are being made. Raises DatabaseError."""
        if pool not in self._launches and now - self._looked.get(pool, float("-inf")) >= LOOK:
            self._looked[pool] = now
            made = await self._make(pool, now)
            if made is not None:
                self._launches[pool] = with_key(made, self._keys.get(pool))
        return self._launches.get(pool)

    async def _make(self, pool: str, now: float) -> Launch | None:
        entry = self._pools[pool]
        if entry.simulated is not None:
            return simulated_launch(pool, entry)
        if entry.gguf is not None:
            return file_launch(pool, entry, Path(entry.gguf), threads=self._threads)
        if pool not in self._recipes:
            return None
        recipe = self._recipes[pool]
        made = await asyncio.to_thread(artifact.find, self._artefacts, recipe.digest)
        if made is not None:
            return file_launch(pool, entry, made.path, threads=self._threads, engine=registry.engine_of(recipe))
        await self._ask(pool, recipe, now)
        return None

    async def _ask(self, pool: str, recipe: AnyRecipe, now: float) -> None:
        if recipe.digest in self._asked:
            return
        try:
            await request_build(self._db, recipe, self._send, pool=pool, now=now, again=True)
        except QueueUnreachable as error:
            self._log.warning("%s: %s", pool, error)
            return
        self._asked.add(recipe.digest)


def threads_each(pools: Mapping[str, PoolSettings], machine: Machine | None = None) -> int:
    """Threads of a replica whose pool does not say: the cores, shared out over our pools that keep replicas.

    Fewer where a pool may have so many replicas that there would be no room for all of them. At least 1.
    """
    machine = machine or this_machine()
    ours = [entry for entry in pools.values() if entry.ours and entry.maximum > 0 and entry.simulated is None]
    keeping = sum(entry.minimum > 0 for entry in ours)
    most = sum(entry.maximum for entry in ours)
    return max(1, min(machine.cores // max(1, keeping), machine.threads // max(1, most)))


def with_key(launch: Launch, key: str | None) -> Launch:
    """The same engine, asking everybody for this key."""
    return msgspec.structs.replace(launch, environ={VARIABLE: key}) if key else launch


def file_launch(pool: str, entry: PoolSettings, model: Path, *, threads: int = 1, engine: str = "llamacpp") -> Launch:
    """A server of ours over a model that lies on this machine; `threads` where the pool does not say how many."""
    threads = entry.threads or threads
    model = model.expanduser().resolve()
    options = ServeOptions(
        name=entry.model or pool,
        model=str(model),
        slots=entry.slots_each,
        context=entry.context,
        threads=threads,
        embeddings=entry.kind == "embed",
        drain=DRAIN,
    )
    weights = model.stat().st_size if model.is_file() else 0
    memory = weights + BESIDE_WEIGHTS * entry.context
    return Launch(registry.serve(engine, options).argv, memory=memory, threads=threads, drain=DRAIN)


def simulated_launch(pool: str, entry: PoolSettings) -> Launch:
    """The simulator, with the pool's own options over what the settings say of any pool."""
    given = {
        "model": entry.model or pool,
        "slots": entry.slots_each,
        "embeddings": entry.kind == "embed",
        "drain": DRAIN,
        **(entry.simulated or {}),
    }
    argv = (sys.executable, "-m", "engines.sim", "--port", "0", "--watch-stdin", *_flags(given))
    return Launch(argv, memory=SIMULATOR, threads=0, drain=DRAIN)


def _flags(given: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words
