"""One record into all its metrics; state; bounds on what a client can make up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import instruments as module
from telemetry import names
from telemetry.aggregate import Buckets, Number, histogram, numbers
from telemetry.instruments import Instruments, tokens_removed
from tests.support.telemetry import a_record

LABELS = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "turnout",
    "gen_ai.request.model": "auto",
    "turnout.pool": "small",
}


def values(instruments, metric):
    """[(labels, value or counts)] of one metric."""
    found = next(series for collected, series in instruments.collect() if collected is metric)
    return [(dict(labels), cell.value if isinstance(cell, Number) else cell.counts) for labels, cell in found]


def observed(instruments, metric, **labels):
    """(count, sum) of one histogram series."""
    found = next(series for collected, series in instruments.collect() if collected is metric)
    cells = [cell for have, cell in found if dict(have) == labels]
    assert len(cells) == 1, [dict(have) for have, _ in found]
    return sum(cells[0].counts), cells[0].total


def one(instruments, metric, **labels):
    return next(value for have, value in values(instruments, metric) if have == labels)


def test_a_record_is_counted_in_every_metric_it_belongs_to():
    instruments = Instruments()
    instruments.request(a_record(attempts=3))
    assert observed(instruments, names.REQUEST_DURATION, **LABELS) == (1, 0.26)
    assert observed(instruments, names.TIME_TO_FIRST_TOKEN, **LABELS) == (1, 0.05)
    assert observed(instruments, names.TIME_PER_OUTPUT_TOKEN, **LABELS) == (1, 0.02)
    assert observed(instruments, names.TOKEN_USAGE, **LABELS, **{"gen_ai.token.type": "input"}) == (1, 75)
    assert observed(instruments, names.TOKEN_USAGE, **LABELS, **{"gen_ai.token.type": "output"}) == (1, 11)
    pool = {"turnout.pool": "small"}
    assert observed(instruments, names.QUEUE_WAIT, **pool) == (1, 0.002)
    assert observed(instruments, names.DECISION_DURATION, **pool) == (1, 0.0003)
    assert observed(instruments, names.PREFIX_HIT, **pool) == (1, 0.8)
    assert values(instruments, names.RETRIES) == [(pool, 2)]
    assert values(instruments, names.PREFIX_TOKENS) == [
        (pool | {"turnout.prefix.source": "predicted"}, 60),
        (pool | {"turnout.prefix.source": "reported"}, 50),
    ]
    form = pool | {"turnout.compression.form": "lossless"}
    assert values(instruments, names.COMPRESSION_INPUT) == [(form, 400)]
    assert values(instruments, names.COMPRESSION_REMOVED) == [(form, 100)]
    assert values(instruments, names.COMPRESSION_TOKENS) == [(form, 25)]
    assert values(instruments, names.ROUTED) == [
        ({"gen_ai.request.model": "auto", **pool, "turnout.route": "gain"}, 1)  # without the number
    ]
    assert one(instruments, names.CALLER_TOKENS, **{"turnout.caller": "dev", "gen_ai.token.type": "output"}) == 11


def test_every_request_metric_of_the_table_is_touched_by_one_record():
    instruments = Instruments()
    instruments.request(a_record())
    touched = {metric.name for metric, series in instruments.collect() if series}
    state = {
        names.QUEUE_WAITING,
        names.INFLIGHT,
        names.REPLICAS,
        names.PREFIX_BLOCKS,
        names.PREFIX_MODE_IN_FORCE,
        names.SYSTEM_TOKENS,
        names.USER_TOKENS,
        names.RECORDS_DROPPED,
        names.LOOP_LAG,
        names.CPU_TIME,
        names.MEMORY,
        names.DESCRIPTORS,
    }
    assert touched == {metric.name for metric in names.METRICS} - {metric.name for metric in state}


def test_the_same_kind_again_adds_to_the_same_series():
    instruments = Instruments()
    for route in ("gain=0.1", "gain=0.2", "gain=-0.3"):
        instruments.request(a_record(route=route))
    assert [value for _, value in values(instruments, names.ROUTED)] == [3]
    assert observed(instruments, names.REQUEST_DURATION, **LABELS)[0] == 3


def test_an_error_before_a_pool_was_chosen_has_only_what_is_known():
    instruments = Instruments()
    refused = a_record(
        pool="", caller="", status=401, outcome="error", error="invalid_api_key", ttft=None, tpot=None, prompt_tokens=0
    )
    instruments.request(refused)
    labels = LABELS | {"error.type": "invalid_api_key"}
    labels.pop("turnout.pool")
    assert observed(instruments, names.REQUEST_DURATION, **labels)[0] == 1
    assert values(instruments, names.REQUESTS) == [
        ({"gen_ai.operation.name": "chat", "turnout.outcome": "error", "http.response.status_code": "401"}, 1)
    ]
    assert values(instruments, names.TOKEN_USAGE) == []
    assert values(instruments, names.QUEUE_WAIT) == []


@pytest.mark.parametrize(
    ("outcome", "error", "told"),
    [
        ("ok", "", None),
        ("cancelled", "", None),
        ("error", "upstream_failed", "upstream_failed"),
        ("error", "", "_other"),
        ("interrupted", "stream_incomplete", "stream_incomplete"),
    ],
)
def test_the_error_type_is_there_only_where_it_went_wrong(outcome, error, told):
    instruments = Instruments()
    instruments.request(a_record(outcome=outcome, error=error))
    [(labels, _)] = values(instruments, names.REQUEST_DURATION)
    assert labels.get("error.type") == told


def test_what_was_not_measured_is_not_observed():
    instruments = Instruments()
    instruments.request(a_record(ttft=None, tpot=None, completion_tokens=0, sent_bytes=400))
    assert [counts for _, counts in values(instruments, names.TIME_TO_FIRST_TOKEN)] == [[0] * 17]
    assert [counts for _, counts in values(instruments, names.TIME_PER_OUTPUT_TOKEN)] == [[0] * 14]
    assert [value for _, value in values(instruments, names.COMPRESSION_REMOVED)] == [0]
    output = LABELS | {"gen_ai.token.type": "output"}
    assert observed(instruments, names.TOKEN_USAGE, **output) == (0, 0)


def test_a_prompt_that_was_never_sent_was_not_compressed():
    instruments = Instruments()
    instruments.request(
        a_record(status=503, outcome="error", error="queue_full", sent_bytes=0, prompt_tokens=0, ttft=None)
    )
    assert [value for _, value in values(instruments, names.COMPRESSION_INPUT)] == [0]
    assert [value for _, value in values(instruments, names.COMPRESSION_REMOVED)] == [0]
    assert [sum(counts) for _, counts in values(instruments, names.PREFIX_HIT)] == [0]
    assert [sum(counts) for _, counts in values(instruments, names.QUEUE_WAIT)] == [1]


def test_the_operations_have_the_conventions_names():
    instruments = Instruments()
    for operation in ("chat", "completions", "embeddings"):
        instruments.request(a_record(operation=operation))
    told = {labels["gen_ai.operation.name"] for labels, _ in values(instruments, names.REQUEST_DURATION)}
    assert told == {"chat", "text_completion", "embeddings"}


def test_state_is_what_was_told_last():
    instruments = Instruments()
    instruments.queue("small", 3, 4)
    instruments.queue("small", 1, 2)
    instruments.queue("large", 0, 1)
    assert values(instruments, names.QUEUE_WAITING) == [({"turnout.pool": "small"}, 1), ({"turnout.pool": "large"}, 0)]
    assert one(instruments, names.INFLIGHT, **{"turnout.pool": "large"}) == 1
    instruments.replicas("small", {"ready": 2, "joining": 1})
    instruments.replicas("large", {"ready": 1})
    instruments.replicas("small", {"ready": 3})
    state = {
        labels["turnout.pool"] + " " + labels["turnout.replica.state"]: v
        for labels, v in values(instruments, names.REPLICAS)
    }
    assert state == {"small ready": 3, "small joining": 0, "large ready": 1}


def test_only_the_mode_in_force_is_told():
    instruments = Instruments()
    instruments.index(10, "exact")
    instruments.index(20, "approximate", "no KV events")
    assert values(instruments, names.PREFIX_BLOCKS) == [({}, 20)]
    assert values(instruments, names.PREFIX_MODE_IN_FORCE) == [
        ({"turnout.prefix.mode": "approximate", "turnout.prefix.reason": "no KV events"}, 1)
    ]


def test_losses_and_lag_add_up():
    instruments = Instruments()
    instruments.dropped(2)
    instruments.dropped(3)
    assert values(instruments, names.RECORDS_DROPPED) == [({}, 5)]
    instruments.loop_lag(0.0004)
    instruments.loop_lag(9.0)
    [(_, counts)] = values(instruments, names.LOOP_LAG)
    assert counts[3] == counts[-1] == 1


def test_a_watched_number_is_read_when_asked_for():
    instruments, waiting = Instruments(), {("small",): 1}
    instruments.watch(names.QUEUE_WAITING, lambda: waiting)
    assert values(instruments, names.QUEUE_WAITING) == [({"turnout.pool": "small"}, 1)]
    waiting.clear()
    waiting[("large",)] = 7
    assert values(instruments, names.QUEUE_WAITING) == [({"turnout.pool": "large"}, 7)]  # nothing stale
    with pytest.raises(ValueError, match="histogram"):
        instruments.watch(names.QUEUE_WAIT, lambda: waiting)


def test_a_client_cannot_fill_the_memory_with_model_names():
    instruments = Instruments()
    for index in range(3000):
        instruments.request(a_record(model=f"model-{index}"))
    models = {labels["gen_ai.request.model"] for labels, _ in values(instruments, names.REQUEST_DURATION)}
    assert len(models) == module.MODELS + 1
    assert "_other" in models
    assert sum(sum(counts) for _, counts in values(instruments, names.REQUEST_DURATION)) == 3000  # nothing is lost


def test_names_that_are_unknown_or_absurdly_long_get_no_series():
    instruments = Instruments()
    instruments.request(a_record(model="made-up", pool="", status=404, outcome="error", error="model_not_found"))
    instruments.request(a_record(model="x" * 10_000))
    assert {labels["gen_ai.request.model"] for labels, _ in values(instruments, names.REQUEST_DURATION)} == {"_other"}


def test_error_codes_of_model_servers_are_bounded():
    instruments = Instruments()
    for index in range(500):
        instruments.request(a_record(outcome="error", error=f"theirs_{index}", status=418))
    assert len(values(instruments, names.REQUEST_DURATION)) == module.ERRORS + 1


def test_kinds_at_hand_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "KINDS", 10)
    instruments = Instruments()
    for index in range(100):
        instruments.request(a_record(status=200 + index % 25))
    assert len(instruments._kinds) <= 10
    assert sum(value for _, value in values(instruments, names.REQUESTS)) == 100


def test_past_its_bound_a_family_shares_one_cell():
    family = numbers(names.RETRIES, bound=2)
    for pool in ("a", "b", "c", "d", "a"):
        family.at(pool).value += 1
    assert [(labels, cell.value) for labels, cell in family.series()] == [
        ({"turnout.pool": "a"}, 2),
        ({"turnout.pool": "b"}, 1),
        ({"otel.metric.overflow": "true"}, 2),
    ]


def test_a_family_refuses_a_wrong_number_of_labels():
    with pytest.raises(ValueError, match=r"turnout\.upstream\.retries"):
        numbers(names.RETRIES).at("small", "too many")
    with pytest.raises(ValueError, match="has the labels"):
        histogram(names.QUEUE_WAIT).at()


@given(st.lists(st.floats(0, 200, allow_nan=False)))
def test_a_histogram_counts_each_value_once_and_below_its_bound(observations):
    cell = Buckets(names.TIME_TO_FIRST_TOKEN.buckets)
    for value in observations:
        cell.observe(value)
    for index, bound in enumerate(cell.bounds):
        assert sum(cell.counts[: index + 1]) == sum(value <= bound for value in observations)
    assert sum(cell.counts) == len(observations)
    assert cell.total == pytest.approx(sum(observations))


@given(before=st.integers(0, 10**6), after=st.integers(0, 10**6), tokens=st.integers(0, 10**5))
def test_tokens_removed_are_never_negative_and_scale_with_the_bytes(before, after, tokens):
    saved = tokens_removed(a_record(prompt_bytes=before, sent_bytes=after, prompt_tokens=tokens))
    assert saved >= 0
    if after >= before or not after:
        assert saved == 0
    else:
        assert saved * after == pytest.approx((before - after) * tokens)
