"""How each pool's replicas are started, and when a build is asked for."""

import sys
from pathlib import Path

import msgspec
import pytest

from engines import artifact
from engines.artifact import Manifest
from engines.sim.__main__ import parse
from gateway.cli.builtin import builtin
from gateway.cli.prepare import simulated
from gateway.control.builds import QueueUnreachable
from gateway.control.fleet.room import Machine
from gateway.control.supply import Artefacts, digests_of, file_launch, recipes_of, simulated_launch, threads_each
from gateway.db.engine import open_database
from gateway.db.migrate import migrate
from gateway.db.repositories import builds
from gateway.settings import PoolSettings, Settings, SettingsError, load

RECIPE = {"engine": "llamacpp", "source": "smollm2-135m-instruct", "quantization": "q4_0"}


class Queue(list):
    broken = False

    def __call__(self, digest: str) -> None:
        if self.broken:
            raise QueueUnreachable("no broker")
        self.append(digest)


@pytest.fixture
async def db(tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path / 'db'}"
    await migrate(url)
    async with open_database(url) as db:
        yield db


def publish(data: Path, digest: str, content: bytes = b"weights") -> Path:
    """An artefact as a build would leave it."""
    folder = artifact.artefacts_folder(data) / digest
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(content)
    sha256 = artifact.sha256_of(folder / "model.gguf")
    manifest = Manifest(
        digest=digest,
        recipe=RECIPE,
        file="model.gguf",
        bytes=len(content),
        sha256=sha256,
        created="2026-01-01T00:00:00+00:00",
        seconds=1.0,
        tools={},
    )
    (folder / artifact.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return folder / "model.gguf"


def settings(tmp_path, **pools) -> Settings:
    return Settings(data=str(tmp_path), pools=pools)


async def test_a_build_is_asked_for_once_however_many_pools_want_it(db, tmp_path):
    queue = Queue()
    given = settings(tmp_path, a=PoolSettings(recipe=RECIPE), b=PoolSettings(recipe=RECIPE, kind="embed"))
    supply = Artefacts(given, db, queue)
    digest = digests_of(given.pools)["a"]
    for now in range(5):
        assert await supply.launch("a", now) is None
        assert await supply.launch("b", now) is None
    assert queue == [digest]
    (build,) = await builds.list_all(db)
    assert (build.digest, build.pool, build.state) == (digest, "a", "queued")
    model = publish(tmp_path, digest)
    a, b = await supply.launch("a", 10), await supply.launch("b", 10)
    assert a is not None
    assert b is not None
    assert str(model) in a.argv
    assert ("--embeddings" in a.argv, "--embeddings" in b.argv) == (False, True)
    assert "--watch-stdin" in a.argv


async def test_an_artefact_that_is_there_needs_no_build(db, tmp_path):
    queue = Queue()
    given = settings(tmp_path, a=PoolSettings(recipe=RECIPE))
    publish(tmp_path, digests_of(given.pools)["a"])
    assert await Artefacts(given, db, queue).launch("a", 0.0) is not None
    assert queue == []


async def test_a_failed_build_is_tried_again_by_the_next_process_only(db, tmp_path):
    queue = Queue()
    given = settings(tmp_path, a=PoolSettings(recipe=RECIPE))
    digest = digests_of(given.pools)["a"]
    supply = Artefacts(given, db, queue)
    await supply.launch("a", 0)
    await builds.start(db, digest, owner="w", log="l", now=1)
    await builds.fail(db, digest, owner="w", message="disk full", now=2)
    for now in range(1, 9):
        await supply.launch("a", now)
    assert queue == [digest]
    await Artefacts(given, db, queue).launch("a", 0)
    assert queue == [digest, digest]


async def test_an_artefact_that_was_deleted_is_built_again(db, tmp_path):
    queue = Queue()
    given = settings(tmp_path, a=PoolSettings(recipe=RECIPE))
    digest = digests_of(given.pools)["a"]
    await Artefacts(given, db, queue).launch("a", 0)
    await builds.start(db, digest, owner="w", log="l", now=1)
    await builds.finish(db, digest, owner="w", message="done", now=2)
    await Artefacts(given, db, queue).launch("a", 0)
    assert queue == [digest, digest]


async def test_a_queue_that_is_away_is_tried_until_it_is_back(db, tmp_path, caplog):
    queue = Queue()
    queue.broken = True
    given = settings(tmp_path, a=PoolSettings(recipe=RECIPE))
    supply = Artefacts(given, db, queue)
    assert await supply.launch("a", 0) is None
    assert "no broker" in caplog.text
    queue.broken = False
    await supply.launch("a", 0.1)  # too soon
    assert queue == []
    await supply.launch("a", 1.0)
    assert len(queue) == 1


async def test_ones_own_file_needs_neither_recipe_nor_queue(db, tmp_path):
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"x" * 1000)
    given = settings(tmp_path, a=PoolSettings(gguf=str(file), recipe=RECIPE, slots=2, context=512, threads=3))
    launch = await Artefacts(given, db, Queue()).launch("a", 0)
    assert launch is not None
    words = " ".join(launch.argv)
    assert f"-m {file} -a a" in words
    assert "-np 2 -c 512 -t 3" in words
    assert launch.threads == 3
    assert 1000 < launch.memory < 100_000_000


def pool(**fields) -> PoolSettings:
    return PoolSettings(**{"gguf": "m", **fields})


@pytest.mark.parametrize(
    ("cores", "pools", "threads"),
    [
        (1, [pool(), pool()], 1),
        (2, [pool(), pool(), pool(minimum=0)], 1),
        (8, [pool()], 8),
        (8, [pool(), pool()], 4),
        (8, [pool(), pool(), pool(minimum=0)], 4),
        (9, [pool(), pool()], 4),
        (8, [pool(minimum=0)], 8),
        (8, [pool(), pool(url="http://x"), pool(minimum=0, maximum=0)], 8),
        (8, [pool(maximum=4)], 4),  # or the third replica would find no room
        (8, [], 8),
    ],
)
def test_the_cores_are_shared_out_over_the_pools_that_keep_replicas(cores, pools, threads):
    machine = Machine(max(4, 2 * cores), None, cores)
    assert threads_each({str(number): one for number, one in enumerate(pools)}, machine) == threads


async def test_a_pool_that_says_nothing_of_threads_gets_its_share(db, tmp_path):
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"x")
    given = settings(tmp_path, a=PoolSettings(gguf=str(file)), b=PoolSettings(gguf=str(file), threads=3))
    supply = Artefacts(given, db, Queue(), machine=Machine(12, None, 6))
    a, b = await supply.launch("a", 0), await supply.launch("b", 0)
    assert (a.threads, a.argv[a.argv.index("-t") + 1]) == (3, "3")
    assert (b.threads, b.argv[b.argv.index("-t") + 1]) == (3, "3")
    alone = await Artefacts(settings(tmp_path, a=given.pools["a"]), db, Queue(), machine=Machine(12, None, 6)).launch(
        "a", 0
    )
    assert alone.threads == 6


async def test_an_engine_is_told_its_key_by_the_environment_alone(db, tmp_path):
    given = settings(tmp_path, a=PoolSettings(simulated={}), b=PoolSettings(simulated={}))
    supply = Artefacts(given, db, Queue(), keys={"a": "hush"})
    a, b = await supply.launch("a", 0), await supply.launch("b", 0)
    assert (a.environ, b.environ) == ({"TURNOUT_ENGINE_KEY": "hush"}, {})
    assert "hush" not in " ".join(a.argv)


async def test_a_pool_that_may_have_no_replica_is_switched_off(db, tmp_path):
    queue = Queue()
    given = settings(tmp_path, a=PoolSettings(recipe=RECIPE, minimum=0, maximum=0))
    assert await Artefacts(given, db, queue).launch("a", 0.0) is None
    assert queue == []
    assert digests_of(given.pools) == {}


def test_the_simulator_understands_how_it_is_started(tmp_path):
    pools = simulated(load(None, {}, builtin=builtin())).pools
    for name, entry in pools.items():
        launch = simulated_launch(name, entry)
        assert launch.argv[:3] == (sys.executable, "-m", "engines.sim")
        options, watch = parse(launch.argv[3:])
        assert watch
        assert (options.model, options.port, options.dialect) == (name, 0, "llamacpp")
        assert options.embeddings == (entry.kind == "embed")
        assert options.prefill_rate == entry.prefill_rate
    assert recipes_of(pools) == {}


def test_a_pools_own_options_of_the_simulator_win():
    entry = PoolSettings(simulated={"slots": 9, "start_delay": 0.5, "fastest": True})
    options, _ = parse(simulated_launch("p", entry).argv[3:])
    assert (options.slots, options.start_delay, options.fastest) == (9, 0.5, True)


def test_small_and_embed_share_one_artefact():
    digests = digests_of(load(None, {}, builtin=builtin()).pools)
    assert digests["small"] == digests["embed"] != digests["large"]


def test_the_name_a_server_answers_to_can_be_chosen():
    launch = file_launch("p", PoolSettings(model="mine"), Path("/m.gguf"))
    assert launch.argv[launch.argv.index("-a") + 1] == "mine"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (PoolSettings(), "url, gguf or recipe"),
        (PoolSettings(gguf="/no/such.gguf"), r"pools\.p\.gguf: there is no file /no/such\.gguf"),
        (PoolSettings(recipe={"engine": "nobody"}), r"pools\.p\.recipe: .*nobody"),
        (PoolSettings(recipe={**RECIPE, "quantization": "q9"}), r"pools\.p\.recipe: .*quantization"),
    ],
)
def test_a_pool_that_cannot_be_served_is_a_mistake_in_the_settings(entry, words):
    with pytest.raises(SettingsError, match=words):
        recipes_of({"p": entry})
