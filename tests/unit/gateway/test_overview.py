"""The overview as a pure function: what rows, catalog and counters together show."""

import msgspec
import pytest

from backends.types import Replica, ReplicaId
from gateway.control.overview import BACK, RECENT, STEP, Rows, Watch, overview
from gateway.db.errors import Unavailable
from gateway.db.rows import BuildRow, ReplicaRow, ScaleDecision
from gateway.serve.catalog import Catalog, Live, Pool
from telemetry.window import Rates, Span

NOW = 1_000_000.0
QUIET = Span(60, Rates(), {})


def replica(name, **changes):
    return ReplicaRow(
        **{"id": name, "pool": name.rpartition("-")[0], "url": "http://h", "state": "ready", "slots": 4, **changes}
    )


def there(name, slots=4):
    return Replica(id=ReplicaId(name), url="http://h", served_model="m", slots=slots)


def catalog(*pools):
    return Catalog(7, {}, {pool.name: pool for pool in pools}, {})


def only(pool, rows=(), *, live=None, builds=(), decisions=(), minute=QUIET):
    picture = overview(NOW, catalog(pool), live or Live(), minute, Rows(rows, decisions, builds))
    return picture.pools[0]


SMALL = Pool("small", scalable=True)
EMBED = Pool("embed", kind="embed", scalable=True, rests_at_zero=True)


def test_no_pools_at_all():
    picture = overview(NOW, Catalog(), Live(), QUIET, Rows())
    assert (picture.pools, picture.events, picture.running) == ((), (), 0)
    assert picture.verdict.level == "warn"
    assert "No pool" in picture.verdict.text


def test_a_pool_shows_its_board_its_minute_and_its_model():
    rates = Rates(requests=2.0, count=120, ttft_p50=0.2)
    minute = Span(60, rates, {"small": rates})
    view = only(
        SMALL, [replica("small-1", served_model="Llama", running=2, waiting=1, kv_used=0.5, reason="r")], minute=minute
    )
    assert (view.name, view.tier, view.kind, view.model, view.status) == ("small", "small", "chat", "Llama", "ready")
    assert view.rates is rates
    (tile,) = view.replicas
    assert (tile.id, tile.state, tile.running, tile.waiting, tile.slots, tile.kv_used) == (
        "small-1",
        "ready",
        2,
        1,
        4,
        0.5,
    )
    assert not tile.blocked


def test_the_model_is_that_of_the_settings_until_a_replica_tells_its_own():
    assert only(Pool("small", served_model="asked"), [replica("small-1")]).model == "asked"


@pytest.mark.parametrize(
    ("pool", "states", "expected"),
    [
        (SMALL, ["ready"], "ready"),
        (SMALL, ["ready", "joining"], "growing"),
        (SMALL, ["ready", "draining"], "shrinking"),
        (SMALL, ["joining"], "starting"),
        (SMALL, ["gone"], "down"),
        (SMALL, ["draining"], "down"),
        (SMALL, [], "down"),
        (EMBED, [], "at zero"),
        (EMBED, ["draining"], "at zero"),
        (EMBED, ["joining"], "starting"),
        (EMBED, ["gone"], "down"),
    ],
)
def test_status_from_the_states_of_its_replicas(pool, states, expected):
    rows = [replica(f"{pool.name}-{number}", state=state) for number, state in enumerate(states)]
    assert only(pool, rows).status == expected


def test_a_replica_that_cannot_be_reached_is_not_merely_starting():
    view = only(SMALL, [replica("small-1", state="joining", reason="connection refused")])
    assert (view.status, view.why) == ("down", "small-1: connection refused")


def test_requests_in_the_queue_make_a_pool_full():
    live = Live()
    live.waiting["small"] = 3
    view = only(SMALL, [replica("small-1")], live=live)
    assert (view.status, view.waiting) == ("full", 3)


def test_held_back_replicas_are_marked_and_all_of_them_mean_failing():
    live = Live()
    live.blocked.add(ReplicaId("small-1"))
    both = only(SMALL, [replica("small-1"), replica("small-2")], live=live)
    assert (both.status, [tile.blocked for tile in both.replicas]) == ("ready", [True, False])
    assert only(SMALL, [replica("small-1")], live=live).status == "failing"


def test_a_build_explains_an_empty_pool():
    row = BuildRow(digest="d", recipe={}, pool="small", state="running", progress=0.42, message="re-quantising")
    view = only(SMALL, builds=[row])
    assert (view.status, view.why) == ("building", "re-quantising, 42%")
    queued = msgspec.structs.replace(row, state="queued")
    assert only(SMALL, builds=[queued]).why == "it waits for a worker"
    failed = msgspec.structs.replace(row, state="failed", message="disk full")
    assert (only(SMALL, builds=[failed]).status, only(SMALL, builds=[failed]).why) == (
        "down",
        "its build failed: disk full",
    )
    assert only(EMBED, builds=[row]).status == "at zero"


def test_a_build_of_a_pool_that_answers_already_changes_nothing():
    row = BuildRow(digest="d", recipe={}, pool="small", state="running")
    change = ScaleDecision(at=1.0, pool="small", before=1, after=2, reason="demand")
    view = only(SMALL, [replica("small-1")], builds=[row], decisions=[change])
    assert (view.status, view.why) == ("ready", "demand")


def test_why_is_the_newest_decision_of_that_pool():
    changes = [
        ScaleDecision(at=3.0, pool="large", before=1, after=2, reason="not mine"),
        ScaleDecision(at=2.0, pool="small", before=1, after=2, reason="newest"),
        ScaleDecision(at=1.0, pool="small", before=0, after=1, reason="older"),
    ]
    assert only(SMALL, [replica("small-1")], decisions=changes).why == "newest"
    assert only(Pool("small"), [replica("small-1")]).why == "one for each of its URLs"


def test_replicas_that_only_the_catalog_knows_are_on_the_board_too():
    live = Live()
    live.inflight[ReplicaId("small-2")] = 3
    pool = Pool("small", replicas=(there("small-1"), there("small-2", slots=8)))
    view = only(pool, [replica("small-1", running=1)], live=live)
    assert [(tile.id, tile.running, tile.slots, tile.reason) for tile in view.replicas] == [
        ("small-1", 1, 4, ""),
        ("small-2", 3, 8, "not probed"),
    ]
    assert view.status == "ready"


def test_the_larger_of_two_counts_of_running_requests_is_shown():
    live = Live()
    live.inflight[ReplicaId("small-1")] = 2
    assert only(SMALL, [replica("small-1", running=5)], live=live).replicas[0].running == 5
    assert only(SMALL, [replica("small-1", running=0)], live=live).replicas[0].running == 2


def test_the_tenth_replica_stands_after_the_ninth():
    view = only(SMALL, [replica(f"small-{number}") for number in (10, 2, 9, 1)])
    assert [tile.id for tile in view.replicas] == ["small-1", "small-2", "small-9", "small-10"]


def test_events_come_newest_first_and_not_without_end():
    changes = [ScaleDecision(at=float(at), pool="small", before=0, after=1, reason="r") for at in range(40)]
    picture = overview(NOW, catalog(SMALL), Live(), QUIET, Rows((), changes))
    assert [event.at for event in picture.events] == [float(at) for at in range(39, 39 - RECENT, -1)]


def test_a_silent_control_loop_is_told_and_a_missing_one_is_not():
    def silent(beat):
        return overview(NOW, catalog(SMALL), Live(), QUIET, Rows(beat=beat)).silent

    assert silent(None) is None  # a gateway alone
    assert silent(NOW - 2) is None
    assert silent(NOW - 34) == 34


class _Dead:
    """A database that does not answer."""

    async def read(self, work):
        raise Unavailable("the database is locked")

    write = read


async def test_a_database_that_does_not_answer_leaves_what_the_catalog_knows():
    known = catalog(Pool("small", replicas=(there("small-1"),)))
    watch = Watch(_Dead(), lambda: known, Live(), lambda now, seconds: QUIET, lambda: NOW)
    picture = await watch.look()
    assert picture.stale == "the database is locked"
    assert [tile.id for tile in picture.pools[0].replicas] == ["small-1"]
    assert picture.verdict.level == "warn"
    assert "database does not answer" in picture.verdict.text


async def test_history_goes_back_step_by_step_and_ends_now():
    asked = []

    def spans(now, seconds):
        asked.append((now, seconds))
        return Span(seconds, Rates(requests=now), {})

    watch = Watch(_Dead(), Catalog, Live(), spans, lambda: NOW)
    moments = [moment async for moment in watch.history()]
    assert [moment.at for moment in moments] == [NOW - back for back in range(BACK, 0, -STEP)]
    assert all(moment.system.requests == moment.at for moment in moments)
    assert {seconds for _, seconds in asked} == {60}
