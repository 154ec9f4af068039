"""The overview's sentences: the verdict, and what changed."""

import pytest

from gateway.control.picture import Overview, PoolView, Tile
from gateway.control.words import duration, events, listed, percent, recipe, sentence, verdict
from gateway.db.rows import BuildRow, ReplicaRow, ScaleDecision
from telemetry.window import Rates


def pool(name="small", status="ready", **changes):
    values = {"tier": "small", "kind": "chat", "model": "m", "waiting": 0, "replicas": (), "rates": Rates(), "why": ""}
    return PoolView(name=name, status=status, **{**values, **changes})


def picture(*pools, system=None, **changes):
    values = {"at": 0.0, "version": 1, "system": system or Rates(), "waiting": 0, "running": 0, "events": ()}
    return Overview(pools=pools, **{**values, **changes})


def told(*pools, **changes):
    made = verdict(picture(*pools, **changes))
    return made.level, made.text


BUSY = Rates(requests=20.0, count=1240, ttft_p50=0.182, errors=0.0)


def test_all_is_well():
    level, text = told(pool(), pool("large"), pool("embed", "at zero"), system=BUSY)
    assert level == "good"
    assert text == (
        "All is well: small and large answer, embed rests at zero until a request comes. "
        "1,240 requests in the last minute, TTFT 182 ms at the median, none failed."
    )


def test_a_quiet_minute_is_no_trouble():
    assert told(pool())[1] == "All is well: small answers. No request finished in the last minute."
    assert told(pool(), running=2)[1].endswith("No request finished in the last minute; 2 running.")


def test_growing_and_shrinking_are_well():
    assert told(pool(status="growing"), pool("large", "shrinking"))[0] == "good"


@pytest.mark.parametrize(
    ("view", "level", "words"),
    [
        (
            pool(status="down", why="small-1: connection refused"),
            "bad",
            "small cannot answer: small-1: connection refused.",
        ),
        (pool(status="down"), "bad", "small cannot answer: no replica is ready."),
        (pool(status="failing"), "bad", "small fails: every replica is held back after errors."),
        (pool(status="building", why="re-quantising, 42%"), "warn", "small is being built: re-quantising, 42%."),
        (pool(status="starting"), "warn", "small is starting."),
        (pool(status="full", waiting=1), "warn", "1 request waits for a free slot in small."),
        (pool(status="full", waiting=7), "warn", "7 requests wait for a free slot in small."),
    ],
)
def test_what_is_wrong_with_a_pool_comes_first(view, level, words):
    made = told(view, pool("large"))
    assert made[0] == level
    assert made[1].startswith(words)
    assert "All is well" not in made[1]


def test_the_broken_stands_before_the_merely_unusual():
    level, text = told(pool(status="starting"), pool("large", "down"))
    assert level == "bad"
    assert text.index("large cannot answer") < text.index("small is starting")


def test_replicas_that_are_held_back_are_named():
    tiles = tuple(
        Tile(f"small-{n}", "ready", 0, 0, 4, None, "", blocked) for n, blocked in ((1, True), (2, True), (3, False))
    )
    assert told(pool(replicas=tiles)) == (
        "warn",
        "small-1 and small-2 are held back after errors. No request finished in the last minute.",
    )


@pytest.mark.parametrize(
    ("share", "count", "level"),
    [
        (0.0, 1000, "good"),
        (0.009, 1000, "good"),
        (0.01, 1000, "warn"),
        (0.2, 1000, "bad"),
        (1.0, 9, "warn"),
        (1.0, 10, "bad"),
    ],
)
def test_failures_count_by_their_share_and_number(share, count, level):
    assert told(pool(), system=Rates(count=count, errors=share))[0] == level


def test_failures_are_told_with_their_share():
    text = told(pool(), system=Rates(count=400, errors=0.032))[1]
    assert text == "3.2 % of the last minute's requests failed. 400 requests in the last minute."


def test_refusals_are_told_and_worry_nobody():
    level, text = told(pool(), system=Rates(count=40, errors=0.0, refused=0.5))
    assert (level, text) == (
        "good",
        "All is well: small answers. 40 requests in the last minute, none failed, 20 refused (4xx).",
    )
    assert told(pool(), system=Rates(count=1, errors=0.0, refused=1.0))[1].endswith(
        "1 request in the last minute, none failed, 1 refused (4xx)."
    )
    level, text = told(pool(), system=Rates(count=40, errors=0.05, refused=0.5))
    assert (level, "5 % of the last minute's requests failed." in text) == ("warn", True)
    assert text.endswith("40 requests in the last minute, 20 refused (4xx).")


def test_what_stands_around_the_pools():
    assert "control loop has been silent for 34 s" in told(pool(), silent=34.2)[1]
    assert "control loop has been silent for 5 min" in told(pool(), silent=310.0)[1]
    assert told(pool(), stale="locked")[0] == "warn"


def one(*, decisions=(), builds=(), board=()):
    (event,) = events(decisions, builds, board)
    return event


def test_a_scale_decision_reads_as_a_change_and_a_reason():
    event = one(
        decisions=[ScaleDecision(at=5.0, pool="large", before=1, after=2, reason="4 running and 3 waiting on 4 slots")]
    )
    assert (event.at, event.title, event.text, event.level) == (
        5.0,
        "large 1 → 2",
        "4 running and 3 waiting on 4 slots.",
        "good",
    )


BUILD = {
    "digest": "9f3c",
    "recipe": {"engine": "llamacpp", "source": "smollm2", "quantization": "q4_0"},
    "pool": "small",
}
TIMES = {"queued_at": 10.0, "started_at": 20.0, "ended_at": 25.0}


@pytest.mark.parametrize(
    ("state", "more", "at", "title", "text", "level"),
    [
        ("queued", {}, 10.0, "Build for small queued", "It waits for a worker.", "warn"),
        (
            "queued",
            {"message": "its worker died; queued again"},
            10.0,
            "Build for small queued",
            "Its worker died; queued again.",
            "warn",
        ),
        (
            "running",
            {"progress": 0.42, "message": "re-quantising"},
            20.0,
            "Building small, 42%",
            "Re-quantising.",
            "warn",
        ),
        ("done", {"message": "done"}, 25.0, "Built small in 5 s", "smollm2, q4_0, llamacpp.", "good"),
        ("failed", {"message": "disk full"}, 25.0, "Build for small failed", "Disk full.", "bad"),
        ("failed", {"log": "b.log"}, 25.0, "Build for small failed", "See its log, b.log.", "bad"),
        ("cancelled", {}, 25.0, "Build for small cancelled", "Somebody stopped it.", "warn"),
    ],
)
def test_a_build_reads_as_what_happened_to_it(state, more, at, title, text, level):
    event = one(builds=[BuildRow(state=state, **BUILD, **TIMES, **more)])
    assert (event.at, event.title, event.text, event.level) == (at, title, text, level)


def test_a_build_for_no_pool_goes_by_its_digest_and_an_empty_recipe_too():
    row = BuildRow(digest="9f3c", recipe={}, state="queued", queued_at=1.0)
    assert one(builds=[row]).title == "Build for 9f3c queued"
    assert recipe(row) == "9f3c"
    assert recipe(BuildRow(digest="d", recipe={"source": "s", "experts": 8})) == "s, 8 experts"


@pytest.mark.parametrize(
    ("state", "reason", "title", "text", "level"),
    [
        (
            "gone",
            "exit code 1: out of memory; next start in 2.0 s",
            "s-1 has stopped",
            "Exit code 1: out of memory; next start in 2.0 s.",
            "bad",
        ),
        ("gone", "", "s-1 has stopped", "No reason was given.", "bad"),
        ("draining", "", "s-1 is leaving", "It finishes what it has and gets nothing new.", "warn"),
        ("joining", "connection refused", "s-1 is not ready", "Connection refused.", "warn"),
    ],
)
def test_a_replica_that_leaves_or_does_not_come_up_is_told(state, reason, title, text, level):
    row = ReplicaRow(id="s-1", pool="s", url="", state=state, reason=reason, changed_at=9.0)
    event = one(board=[row])
    assert (event.at, event.title, event.text, event.level) == (9.0, title, text, level)


@pytest.mark.parametrize(("state", "reason"), [("ready", ""), ("ready", "x"), ("joining", "loading"), ("joining", "")])
def test_a_replica_that_simply_works_or_comes_up_is_no_event(state, reason):
    assert not list(events((), (), [ReplicaRow(id="s-1", pool="s", url="", state=state, reason=reason)]))


def test_sentences_end_once_and_begin_with_a_capital_where_that_is_right():
    assert [sentence("a b"), sentence("Done."), sentence("  "), sentence("small x", capital=False)] == [
        "A b.",
        "Done.",
        "",
        "small x.",
    ]
    assert sentence("élan") == "Élan."


def test_lists_name_three_at_most():
    assert [listed([]), listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert listed(["a", "b", "c", "d"]) == "4 pools"


def test_numbers_have_a_unit_and_no_false_precision():
    assert [duration(s) for s in (0.0093, 0.0303, 0.182, 0.9999, 1.23, 140)] == [
        "9.3 ms",
        "30 ms",
        "182 ms",
        "1 s",
        "1.2 s",
        "140 s",
    ]
    assert [percent(s) for s in (0.0004, 0.032, 0.123, 1.0)] == ["0.04 %", "3.2 %", "12 %", "100 %"]
