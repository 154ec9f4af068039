"""The control loop on a real database, with a fleet and a backend that do as they are told."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from backends.errors import Unreachable
from backends.types import Access, Load
from gateway.control.autoscale.loop import Scaler, limits_of
from gateway.control.autoscale.policy import Limits
from gateway.control.beside import Pace
from gateway.control.fleet.protocol import Launch, Unit
from gateway.control.fleet.static import StaticFleet
from gateway.control.loop import ControlLoop
from gateway.control.watch import Health, Watch, asked, judged, model_of
from gateway.db.engine import open_database
from gateway.db.errors import Unavailable
from gateway.db.migrate import migrate
from gateway.db.repositories import decisions, demand, replicas, requests
from gateway.db.rows import DemandRow, ReplicaRow
from gateway.settings import Control, PoolSettings, Settings
from telemetry.record import RequestRecord
from tests.support.processes import until

LAUNCH = Launch(("server",))
RECIPE = {"engine": "llamacpp", "source": "x"}


class FakeFleet:
    """Replicas that run at once, unless told otherwise."""

    def __init__(self) -> None:
        self.units: dict[str, Unit] = {}
        self.asked: dict[str, int] = {}

    async def observe(self) -> Sequence[Unit]:
        return tuple(self.units.values())

    async def scale(self, pool: str, replicas: int, launch: Launch | None) -> None:
        self.asked[pool] = replicas
        mine = [name for name, unit in self.units.items() if unit.pool == pool]
        for name in mine[replicas:]:
            del self.units[name]
        for number in range(len(mine) + 1, replicas + 1):
            self.show(f"{pool}-{number}", pool)

    async def drain(self, replica: str) -> None:
        self.units.pop(replica, None)

    def show(self, name: str, pool: str, phase="running", incarnation="i1", reason="") -> None:
        self.units[name] = Unit(name, pool, phase, f"http://{name}", incarnation, reason, 7)


class FakeBackend:
    """Answers probes with what is laid ready by URL: a load, None, or an error."""

    def __init__(self) -> None:
        self.says: dict[str, object] = {}
        self.probed: list[str] = []

    def send(self, replica, call, meter):
        raise AssertionError("the control loop sends no requests")

    async def probe(self, replica) -> Load | None:
        self.probed.append(replica.url)
        answer = self.says.get(replica.url, Load())
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeSupply:
    def __init__(self) -> None:
        self.ready = True
        self.wanted: set[str] = set()

    async def launch(self, pool: str, now: float) -> Launch | None:
        self.wanted.add(pool)
        return LAUNCH if self.ready else None


class World:
    """Everything around one control loop, and a clock that stands still until it is moved."""

    def __init__(self, db, settings: Settings) -> None:
        self.now = 1_000_000.0
        self.db = db
        self.fleet, self.backend, self.supply, self.pace = FakeFleet(), FakeBackend(), FakeSupply(), Pace()
        pools = settings.pools
        self.watch = Watch(
            pools,
            {name: Access() for name in pools},
            dict.fromkeys(("openai", "llamacpp"), self.backend),
            ask_model=self.ask_model,
            interval=0.01,
            changed=self.pace.hurry,
            clock=lambda: self.now,
        )
        self.scaler = Scaler({name: limits_of(entry) for name, entry in pools.items() if entry.ours})
        self.loop = ControlLoop(
            settings,
            db,
            local=self.fleet,
            static=StaticFleet({name: entry.urls for name, entry in pools.items() if not entry.ours}),
            watch=self.watch,
            scaler=self.scaler,
            supply=self.supply,
            pace=self.pace,
            clock=lambda: self.now,
        )

    async def ask_model(self, replica) -> str:
        return f"model at {replica.url}"

    async def rows(self) -> dict[str, ReplicaRow]:
        return {row.id: row for row in await replicas.list_all(self.db)}

    async def steps(self, seconds: float = 0.0, *, step: float = 1.0) -> None:
        """Let time pass; every step a gateway has said what it last said."""
        end = self.now + seconds
        while True:
            await self.loop.step()
            await asyncio.sleep(0.03)  # probes run beside the loop
            if self.now >= end:
                return
            self.now += step

    async def state(self, replica: str, state: str) -> ReplicaRow:
        async def look():
            await self.loop.step()
            row = (await self.rows()).get(replica)
            return row if row and row.state == state else None

        return await until(look, 10)

    async def demand(self, pool: str, running=0, waiting=0, last=None) -> None:
        row = DemandRow(pool=pool, running=running, waiting=waiting, last_request_at=last)
        await demand.put(self.db, "gw", [row], self.now)


@pytest.fixture
async def world(tmp_path):
    settings = Settings(
        control=Control(interval=0.05, probe_interval=0.01),
        pools={
            "small": PoolSettings(recipe=RECIPE, minimum=1, maximum=3, slots=4),
            "embed": PoolSettings(recipe=RECIPE, minimum=0, maximum=1, idle_seconds=20, kind="embed"),
            "far": PoolSettings(url="http://far:1/"),
        },
    )
    url = f"sqlite+aiosqlite:///{tmp_path / 'db'}"
    await migrate(url)
    async with open_database(url) as db:
        made = World(db, settings)
        async with made.watch:
            yield made


async def test_pools_come_to_their_minimum_and_are_ready_when_probed(world):
    await world.loop.begin()
    row = await world.state("small-1", "ready")
    assert (row.url, row.served_model, row.slots, row.incarnation) == ("http://small-1", "small", 4, "i1")
    assert world.fleet.asked == {"small": 1, "embed": 0}
    (decision,) = await decisions.recent(world.db)
    assert (decision.pool, decision.before, decision.after) == ("small", 0, 1)
    assert "minimum" in decision.reason


async def test_a_server_that_is_not_ours_is_asked_for_its_model(world):
    row = await world.state("far-1", "ready")
    assert (row.served_model, row.url, row.incarnation) == ("model at http://far:1", "http://far:1", "static")


async def test_nothing_starts_before_its_weights_are_there(world):
    world.supply.ready = False
    await world.steps()
    assert "small" not in world.fleet.asked
    world.supply.ready = True
    await world.steps()
    assert world.fleet.asked["small"] == 1


async def test_loading_is_joining_not_ready(world):
    world.backend.says["http://small-1"] = None
    row = await world.state("small-1", "joining")
    await world.steps()
    assert (await world.rows())["small-1"].reason == "loading"
    world.backend.says["http://small-1"] = Load(1, 2, 0.5)
    row = await world.state("small-1", "ready")
    assert (row.running, row.waiting, row.kv_used) == (1, 2, 0.5)


async def test_out_after_three_bad_probes_and_back_after_a_good_one(world):
    await world.state("small-1", "ready")
    world.backend.says["http://small-1"] = Unreachable("refused")
    row = await world.state("small-1", "joining")
    assert row.reason == "http://small-1: refused"
    world.backend.says["http://small-1"] = Load()
    await world.state("small-1", "ready")


async def test_a_process_that_hangs_is_replaced_but_not_a_server_of_others(world, caplog):
    await world.state("small-1", "ready")
    await world.state("far-1", "ready")
    for url in ("http://small-1", "http://far:1"):
        world.backend.says[url] = Unreachable("refused")
    await world.state("small-1", "joining")
    world.now += 119
    await world.loop.step()
    assert "small-1 has not answered" not in caplog.text
    world.now += 2
    world.backend.says["http://small-1"] = Load()
    await world.loop.step()
    assert "small-1 has not answered a probe for long" in caplog.text
    assert "far-1 has not" not in caplog.text
    await world.state("small-1", "ready")  # the fleet was asked for one again


async def test_only_changes_that_matter_to_routing_move_the_version(world):
    await world.state("small-1", "ready")
    await world.state("far-1", "ready")
    version = await replicas.version(world.db)
    world.backend.says["http://small-1"] = Load(3, 1, None)

    async def loaded():
        await world.loop.step()
        return (await world.rows())["small-1"].running == 3

    await until(loaded)
    assert await replicas.version(world.db) == version


async def test_another_process_behind_the_same_name_is_joining_again(world):
    await world.state("small-1", "ready")
    world.backend.says["http://small-1"] = None
    world.fleet.show("small-1", "small", incarnation="i2")
    assert (await world.state("small-1", "joining")).incarnation == "i2"


@pytest.mark.parametrize(
    ("phase", "state"), [("draining", "draining"), ("starting", "joining"), ("backoff", "gone"), ("waiting", "gone")]
)
async def test_phases_and_states(world, phase, state):
    await world.state("small-1", "ready")
    world.fleet.show("small-1", "small", phase=phase, reason="because")
    assert (await world.state("small-1", state)).reason == "because"


async def test_a_replica_that_left_has_no_row(world):
    await world.state("small-1", "ready")
    world.fleet.show("far-9", "far")
    await world.state("far-9", "ready")
    del world.fleet.units["far-9"]
    await world.steps()
    assert "far-9" not in await world.rows()


async def test_from_zero_on_demand_and_back_after_idling(world):
    await world.demand("embed")
    await world.steps()
    assert world.fleet.asked["embed"] == 0
    assert world.supply.wanted == {"small"}  # nothing is built that nobody has asked for
    await world.demand("embed", waiting=1, last=world.now)
    await world.steps()
    assert world.fleet.asked["embed"] == 1
    for _ in range(21):
        world.now += 1
        await world.demand("embed", last=world.now - 1000)
        await world.loop.step()
    assert world.fleet.asked["embed"] == 0
    reasons = [decision.reason for decision in await decisions.recent(world.db, pool="embed")]
    assert "no request for 20 s" in reasons[0]
    assert "1 request came" in reasons[1]


async def test_silence_of_all_gateways_is_not_idleness(world):
    await world.demand("embed", waiting=1, last=world.now)
    await world.steps()
    world.now += 500
    await world.steps()
    assert world.fleet.asked["embed"] == 1


async def test_work_that_did_not_come_through_a_gateway_counts(world):
    await world.state("small-1", "ready")
    world.backend.says["http://small-1"] = Load(running=4, waiting=3)
    await world.state("small-1", "ready")

    async def grown():
        await world.demand("small")
        await world.loop.step()
        return world.fleet.asked["small"] == 2

    await until(grown)


async def test_an_earlier_control_process_is_cleaned_up_after(world):
    await replicas.put(world.db, ReplicaRow(id="old-1", pool="small", url="http://old", state="ready"))
    await world.loop.begin()
    assert await world.rows() == {}


async def test_the_end_takes_every_replica_out_of_routing(world):
    await world.state("small-1", "ready")
    await world.loop.end(settle=0.01)
    assert await world.rows() == {}


async def test_without_a_database_replicas_stay_and_the_loop_goes_on(world, monkeypatch, caplog):
    await world.state("small-1", "ready")
    broken = [True]
    real = world.loop.step

    async def step():
        if broken[0]:
            raise Unavailable("locked")
        await real()
        world.pace.stop()

    monkeypatch.setattr(world.loop, "step", step)
    task = asyncio.create_task(world.loop.run())
    await until(lambda: _logged(caplog))
    assert world.fleet.asked["small"] == 1
    broken[0] = False
    await asyncio.wait_for(task, 10)
    assert caplog.text.count("replicas stay as they are") == 1


async def _logged(caplog) -> bool:
    return "replicas stay as they are" in caplog.text


async def test_a_sign_of_life_once_a_second(world):
    await world.steps()
    assert (await replicas.signs(world.db)).beat == int(world.now)
    world.now += 0.5
    await world.steps()
    assert (await replicas.signs(world.db)).beat == int(world.now - 0.5)
    world.now += 1.5
    await world.steps()
    assert (await replicas.signs(world.db)).beat == int(world.now)


async def test_old_records_of_requests_are_forgotten(world):
    days = 86400.0
    kept = RequestRecord(id="kept", at=world.now - 29 * days, operation="chat", caller="c", model="m")
    await requests.add_many(world.db, [kept, msgspec.structs.replace(kept, id="old", at=world.now - 31 * days)])
    await world.steps()
    assert [record.id for record in await requests.recent(world.db)] == ["kept"]


def test_judging_probes():
    ready = Health("ready", 0, "")
    assert judged(Health(), Load()) == ready
    assert judged(Health(), None) == Health("joining", 1, "loading")
    once = judged(ready, "refused")
    twice = judged(once, None)
    assert (once.state, twice.state, judged(twice, "refused").state) == ("ready", "ready", "joining")
    assert judged(twice, Load()) == ready  # one good probe starts the count anew


@pytest.mark.parametrize("document", [b"", b"[]", b'{"data": []}', b'{"data": [{}]}', b"<html>"])
def test_a_server_that_names_no_model_is_told_what_to_say(document):
    with pytest.raises(Unreachable, match=r"http://h/v1/models is .*say `model`"):
        model_of(document, url="http://h/v1/models")


@pytest.mark.parametrize(
    ("status", "words"), [(404, "http://h/v1/models answered 404$"), (401, "answered 401; say `key`, `key_env`")]
)
def test_a_server_that_does_not_list_its_models_is_told_with_url_and_status(status, words):
    with pytest.raises(Unreachable, match=words):
        model_of(b'{"detail": "Not Found"}', url="http://h/v1/models", status=status)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("far-1: /health answered 500", "http://far:1/health answered 500"),
        ("far-1: cannot connect", "http://far:1: cannot connect"),
        ("http://far:1/v1/models answered 404", "http://far:1/v1/models answered 404"),
    ],
)
def test_why_a_probe_failed_names_the_url(words, told):
    assert asked(Unit("far-1", "far", "running", "http://far:1", "static"), words) == told


def test_the_first_model_counts():
    assert model_of(b'{"object": "list", "data": [{"id": "a", "x": 1}, {"id": "b"}]}', url="u") == "a"


def test_limits_come_from_the_pools_settings():
    entry = PoolSettings(minimum=1, maximum=3, slots=2, idle_seconds=9)
    assert limits_of(entry) == Limits(minimum=1, maximum=3, slots=2, idle_seconds=9)


def test_slots_where_nobody_says():
    assert PoolSettings(recipe=RECIPE).slots_each == 4
    assert PoolSettings(url="http://far:1").slots_each == 32
    assert PoolSettings(url="http://far:1", slots=7).slots_each == 7
