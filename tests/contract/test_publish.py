"""The poll of the catalog against a real database file."""

import asyncio
import logging

import msgspec
import pytest

from backends.types import Load
from gateway.control.publish import SILENCE, CatalogPoll, loads_of, polling
from gateway.db.engine import open_database
from gateway.db.migrate import downgrade, migrate
from gateway.db.repositories import replicas
from gateway.db.rows import ReplicaRow
from gateway.settings import Settings, SettingsError
from tests.support.databases import fresh_database
from tests.support.processes import until

TREE = {
    "pools": {"small": {"gguf": "m"}, "far": {"url": "http://far:1"}},
    "control": {"poll_interval": 0.01, "probe_interval": 1.0},
}
SETTINGS = msgspec.convert(TREE, Settings)
SMALL = ReplicaRow(id="small-1", pool="small", url="http://s:1", state="ready", running=1, kv_used=0.5)
FAR = ReplicaRow(id="far-1", pool="far", url="http://far:1", state="joining")


class Gateway:
    """What the poll is given, and what it did with it."""

    def __init__(self, db, settings=SETTINGS):
        self.now = 1000.0
        self.catalogs = []
        self.loads = []
        self.poll = CatalogPoll(
            db, settings, publish=self.catalogs.append, loads=self.loads.append, clock=lambda: self.now
        )

    def ready(self):
        return {name: [one.id for one in pool.replicas] for name, pool in self.catalogs[-1].pools.items()}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the default data folder is relative


@pytest.fixture
async def db(tmp_path):
    async with fresh_database("sqlite", tmp_path) as database:
        yield database


@pytest.fixture
def gateway(db):
    return Gateway(db)


async def test_a_change_brings_a_new_catalog_and_nothing_else_does(db, gateway):
    await gateway.poll.look()
    assert gateway.ready() == {"small": [], "far": ["far-1"]}
    await gateway.poll.look()
    assert len(gateway.catalogs) == 1
    await replicas.put(db, SMALL)
    await replicas.put(db, FAR)
    await gateway.poll.look()
    assert gateway.ready() == {"small": ["small-1"], "far": []}
    assert gateway.catalogs[-1].version == await replicas.version(db)
    await replicas.update_load(db, {"small-1": Load(3)})
    gateway.now += 5
    await gateway.poll.look()
    assert len(gateway.catalogs) == 2


async def test_loads_are_read_as_often_as_they_are_probed(db, gateway):
    await replicas.put(db, SMALL)
    await replicas.put(db, FAR)
    await gateway.poll.look()
    assert gateway.loads == [{"small-1": Load(1, 0, 0.5)}]
    await replicas.update_load(db, {"small-1": Load(3, 2, None)})
    await gateway.poll.look()
    assert len(gateway.loads) == 1
    gateway.now += 1
    await gateway.poll.look()
    assert gateway.loads[1:] == [{"small-1": Load(3, 2, None)}]


def test_only_ready_servers_loads_count():
    assert loads_of((SMALL, FAR)) == {"small-1": Load(1, 0, 0.5)}


async def test_a_silent_control_loops_opinion_of_foreign_servers_is_forgotten(db, gateway):
    await replicas.put(db, SMALL)
    await replicas.put(db, FAR)
    await replicas.beat(db, gateway.now)
    await gateway.poll.look()
    assert gateway.ready() == {"small": ["small-1"], "far": []}
    gateway.now += SILENCE
    await gateway.poll.look()
    assert gateway.ready() == {"small": ["small-1"], "far": ["far-1"]}
    await replicas.beat(db, gateway.now)
    await gateway.poll.look()
    assert gateway.ready() == {"small": ["small-1"], "far": []}


async def test_an_outage_keeps_the_last_catalog_and_is_told_once(tmp_path, caplog):
    url = f"sqlite:///{tmp_path / 'turnout.db'}"
    await migrate(url)
    async with open_database(url) as db:
        gateway = Gateway(db)
        await replicas.put(db, SMALL)
        await gateway.poll.look()
        await downgrade(url, "base")
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                await gateway.poll.look()
        assert (gateway.poll.errors, gateway.poll.failing, len(gateway.catalogs)) == (3, True, 1)
        assert len(caplog.records) == 1
        await migrate(url)
        await gateway.poll.look()
        assert (gateway.poll.errors, gateway.poll.failing) == (3, False)
        assert gateway.ready()["small"] == []


async def test_without_a_database_the_settings_alone_count_until_it_is_there(tmp_path):
    url = f"sqlite:///{tmp_path / 'turnout.db'}"
    async with open_database(url) as db:
        gateway = Gateway(db)
        await gateway.poll.look()
        assert gateway.ready() == {"small": [], "far": ["far-1"]}
        await migrate(url)
        await replicas.put(db, SMALL)
        await gateway.poll.look()
        assert gateway.ready()["small"] == ["small-1"]


async def test_a_bad_setting_stops_the_start_but_not_a_running_gateway(db, tmp_path):
    secret = tmp_path / "key"
    tree = {**TREE, "pools": {"small": {"gguf": "m", "key_file": str(secret)}}}
    gateway = Gateway(db, msgspec.convert(tree, Settings))
    with pytest.raises(SettingsError, match="key"):
        async with polling(gateway.poll):
            pass
    secret.write_text("s")
    await gateway.poll.look()
    secret.unlink()
    await replicas.put(db, SMALL)
    await gateway.poll.look()
    assert (gateway.poll.errors, len(gateway.catalogs)) == (1, 1)
    secret.write_text("s")
    await gateway.poll.look()
    assert gateway.ready() == {"small": ["small-1"]}


async def test_our_own_engines_are_asked_with_the_key_of_the_data_folder(db, gateway, tmp_path):
    await replicas.put(db, SMALL)
    await gateway.poll.look()
    pools = gateway.catalogs[-1].pools
    key = (tmp_path / ".turnout" / "engine-key").read_text().strip()
    assert pools["small"].replicas[0].access.key == key
    assert pools["far"].replicas[0].access.key is None


async def test_a_gateway_of_foreign_pools_alone_makes_no_key(db, tmp_path):
    gateway = Gateway(db, msgspec.convert({**TREE, "pools": {"far": {"url": "http://far:1"}}}, Settings))
    await gateway.poll.look()
    assert not (tmp_path / ".turnout").exists()


async def test_it_runs_beside_a_block_and_ends_with_it(db, gateway):
    async with polling(gateway.poll):
        assert len(gateway.catalogs) == 1
        await replicas.put(db, SMALL)
        await until(lambda: len(gateway.catalogs) == 2)
    assert len(asyncio.all_tasks()) == 1
