"""A gateway's demand report against a real database file."""

import logging

import pytest

from backends.types import Replica, ReplicaId
from gateway.control.demand import QUIET, DemandReporter, reporting
from gateway.db.engine import open_database
from gateway.db.migrate import migrate
from gateway.db.repositories import demand
from gateway.db.rows import Demand, DemandRow
from gateway.serve.catalog import Catalog, Live, Pool
from tests.support.databases import fresh_database
from tests.support.processes import until

ONE, TWO = ReplicaId("small-1"), ReplicaId("small-2")


def catalog(*replicas: ReplicaId) -> Catalog:
    ready = tuple(Replica(one, "http://s:1", "m") for one in replicas)
    return Catalog(pools={"small": Pool("small", replicas=ready), "large": Pool("large")})


class Gateway:
    """One gateway's counters and reporter."""

    def __init__(self, db, interval=60.0):
        self.now = 1000.0
        self.live = Live()
        self.catalog = catalog(ONE, TWO)
        self.reporter = DemandReporter(
            db,
            gateway="g",
            live=self.live,
            catalog=lambda: self.catalog,
            interval=interval,
            clock=lambda: self.now,
        )

    def rows(self):
        return {row.pool: row for row in self.reporter.rows(self.now)}


@pytest.fixture
async def db(tmp_path):
    async with fresh_database("sqlite", tmp_path) as database:
        yield database


@pytest.fixture
def gateway(db):
    return Gateway(db)


async def test_every_pool_is_reported_at_zero_too(db, gateway):
    await gateway.reporter.report()
    assert await demand.totals(db, gateway.now, 3.0) == {"small": Demand(seen=True), "large": Demand(seen=True)}


async def test_what_runs_waits_and_came(gateway):
    gateway.live.inflight = {ONE: 2, TWO: 1, ReplicaId("nobody's"): 5}
    gateway.live.waiting = {"large": 3}
    gateway.reporter.arrived("small")
    gateway.now += 1
    gateway.reporter.arrived("small")
    assert gateway.rows() == {
        "small": DemandRow(pool="small", running=3, arrived=2, last_request_at=1001.0),
        "large": DemandRow(pool="large", waiting=3, last_request_at=1001.0),
    }


async def test_a_request_on_a_replica_that_drains_still_runs(gateway):
    gateway.live.inflight = {ONE: 1}
    assert gateway.rows()["small"].running == 1
    gateway.catalog = catalog(TWO)
    gateway.now += 10
    assert gateway.rows()["small"] == DemandRow(pool="small", running=1, last_request_at=1010.0)
    gateway.live.inflight = {ONE: 0}
    gateway.now += 10
    assert gateway.rows()["small"] == DemandRow(pool="small", running=0, last_request_at=1010.0)
    gateway.live.inflight = {ONE: 1}  # no longer known: nobody can say whose it is
    assert gateway.rows()["small"].running == 0


async def test_the_same_report_is_written_again_only_as_a_sign_of_life(db, gateway):
    async def written_at():
        fresh = [moment for moment in range(995, 1010) if (await demand.totals(db, moment, 0.0))["small"].seen]
        return max(fresh)

    await gateway.reporter.report()
    gateway.now += QUIET / 2
    await gateway.reporter.report()
    assert await written_at() == 1000
    gateway.now += QUIET / 2
    await gateway.reporter.report()
    assert await written_at() == 1001
    gateway.live.waiting = {"small": 1}
    await gateway.reporter.report()
    assert (await demand.totals(db, gateway.now, 3.0))["small"].waiting == 1


async def test_a_poke_reports_at_once_and_the_end_once_more(db):
    gateway = Gateway(db, interval=600.0)

    async def large():
        return (await demand.totals(db, gateway.now, 3.0)).get("large", Demand())

    async def seen():
        return (await large()).seen

    async def waits():
        return (await large()).waiting == 1

    async with reporting(gateway.reporter):
        await until(seen)
        gateway.live.waiting = {"large": 1}
        gateway.reporter.poke()
        await until(waits)
        gateway.live.waiting = {"large": 0}
    assert await large() == Demand(last_request_at=1000.0, seen=True)


async def test_an_outage_is_told_once_and_survived(tmp_path, caplog):
    url = f"sqlite:///{tmp_path / 'turnout.db'}"
    async with open_database(url) as db:
        gateway = Gateway(db)
        with caplog.at_level(logging.WARNING):
            await gateway.reporter.report()
            await gateway.reporter.report()
        assert (gateway.reporter.errors, gateway.reporter.failing, len(caplog.records)) == (2, True, 1)
        await migrate(url)
        await gateway.reporter.report()
        assert not gateway.reporter.failing
        assert (await demand.totals(db, gateway.now, 3.0))["small"].seen
