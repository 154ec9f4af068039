"""The Prometheus text: one golden file, and a reader that was not written from our writer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import names
from telemetry.exposition import CONTENT_TYPE, exposition, number
from telemetry.instruments import Instruments
from tests.support.golden import same_as_golden
from tests.support.telemetry import a_record, read_exposition, sample

GOLDEN = Path(__file__).parent / "golden" / "metrics.txt"


def busy():
    """Instruments with something in every metric, the same each time."""
    instruments = Instruments()
    instruments.request(a_record())
    instruments.request(a_record(pool="large", replica="large-0", route="forced", model="large", ttft=1.5, tpot=0.1))
    instruments.request(a_record(operation="embeddings", pool="embed", model="embed", tpot=None, completion_tokens=0))
    instruments.request(a_record(outcome="interrupted", error="stream_incomplete", attempts=2))
    instruments.request(
        a_record(pool="", status=401, caller="", outcome="error", error="invalid_api_key", duration=0.001)
    )
    instruments.queue("small", 2, 4)
    instruments.replicas("small", {"ready": 1, "joining": 1})
    instruments.index(1234, "approximate", "no KV events")
    instruments.dropped(1)
    instruments.loop_lag(0.0002)
    instruments.watch(names.SYSTEM_TOKENS, lambda: {("small",): 12.5})
    instruments.watch(names.USER_TOKENS, lambda: {("small",): 50.0})
    instruments.watch(names.CPU_TIME, lambda: {(): 1.25})
    instruments.watch(names.MEMORY, lambda: {(): 100_000_000})
    instruments.watch(names.DESCRIPTORS, lambda: {(): 17})
    return instruments


def test_the_text_is_the_golden_one():
    target = {"service.name": "turnout", "service.instance.id": "gateway-1"}
    same_as_golden(GOLDEN, exposition(busy(), target).decode())


def test_the_content_type_is_the_formats():
    assert CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"


def test_every_metric_of_the_table_is_there_with_its_type():
    _, kinds = read_exposition(exposition(busy()).decode())
    assert kinds == {metric.prometheus: metric.kind for metric in names.METRICS}


def test_a_reader_of_the_format_finds_the_numbers():
    samples, _ = read_exposition(exposition(busy()).decode())
    small = {"turnout_pool": "small"}
    assert sample(samples, "turnout_queue_waiting", **small) == 2
    assert sample(samples, "turnout_replicas", **small, turnout_replica_state="joining") == 1
    assert sample(samples, "turnout_upstream_retries_total", **small) == 1
    gen_ai = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "turnout",
        "gen_ai_request_model": "auto",
        "turnout_pool": "small",
    }
    first = "gen_ai_server_time_to_first_token_seconds"
    assert sample(samples, f"{first}_count", **gen_ai) == 2
    assert sample(samples, f"{first}_sum", **gen_ai) == pytest.approx(0.1)
    assert sample(samples, f"{first}_bucket", **gen_ai, le="0.04") == 0
    assert sample(samples, f"{first}_bucket", **gen_ai, le="0.06") == 2
    duration = "gen_ai_server_request_duration_seconds"
    assert sample(samples, f"{duration}_count", **gen_ai) == 1
    assert sample(samples, f"{duration}_count", **gen_ai, error_type="stream_incomplete") == 1


def test_buckets_never_fall_and_end_in_the_count():
    samples, kinds = read_exposition(exposition(busy()).decode())
    series = {}
    for (name, labels), value in samples.items():
        family = name.removesuffix("_bucket")
        if name != family:
            bounds = dict(labels)
            le = float(bounds.pop("le").replace("Inf", "inf"))
            series.setdefault((family, frozenset(bounds.items())), []).append((le, value))
    assert {family for family, _ in series} == {name for name, kind in kinds.items() if kind == "histogram"}
    for (family, labels), buckets in series.items():
        counts = [count for _, count in sorted(buckets)]
        assert counts == sorted(counts)
        assert counts[-1] == samples[f"{family}_count", labels]


@given(st.text(max_size=30).filter(lambda text: text.isprintable() or "\n" in text))
def test_any_label_value_survives(value):
    value = value.replace("\r", "").replace("\x85", "").replace("\u2028", "").replace("\u2029", "")
    value = "".join(character for character in value if character == "\n" or character.isprintable())
    instruments = Instruments()
    instruments.replicas("small", {f"state {value}": 1})
    samples, _ = read_exposition(exposition(instruments).decode())
    assert sample(samples, "turnout_replicas", turnout_pool="small", turnout_replica_state=f"state {value}") == 1


def test_nothing_counted_is_an_empty_page():
    assert exposition(Instruments()) == b"\n"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (3.0, "3"),
        (-2, "-2"),
        (0.1, "0.1"),
        (2**60, str(2**60)),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
    ],
)
def test_numbers_are_written_so_that_prometheus_reads_them(value, written):
    assert number(value) == written


@given(st.floats(allow_nan=False))
def test_no_number_loses_precision(value):
    assert float(number(value).replace("Inf", "inf")) == value
