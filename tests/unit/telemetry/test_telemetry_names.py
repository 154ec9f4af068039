"""The table of names: complete, well formed, and as the conventions ask."""

import re

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, http_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics, process_metrics
from opentelemetry.semconv.attributes import error_attributes

from telemetry import names

GEN_AI = [metric for metric in names.METRICS if metric.name.startswith("gen_ai.")]


def test_all_metrics_of_the_module_are_in_the_table_once():
    defined = [value for value in vars(names).values() if isinstance(value, names.Metric)]
    assert sorted(metric.name for metric in defined) == sorted(metric.name for metric in names.METRICS)
    assert len({metric.name for metric in names.METRICS}) == len(names.METRICS)
    assert len({metric.prometheus for metric in names.METRICS}) == len(names.METRICS)


@pytest.mark.parametrize("metric", names.METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_well_formed(metric):
    assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", metric.name)
    assert re.fullmatch(r"[a-z_]+", metric.prometheus)
    assert metric.description.endswith(".")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.prometheus.endswith("_total") == (metric.kind == "counter")


def test_every_label_is_a_described_attribute():
    described = {attribute.name for attribute in names.ATTRIBUTES}
    assert {label for metric in names.METRICS for label in metric.labels} <= described


def test_the_prometheus_names_follow_the_rules_of_translation():
    assert names.REQUEST_DURATION.prometheus == "gen_ai_server_request_duration_seconds"
    assert names.TOKEN_USAGE.prometheus == "gen_ai_client_token_usage"
    assert names.COMPRESSION_REMOVED.prometheus == "turnout_compression_removed_bytes_total"
    assert names.SYSTEM_TOKENS.prometheus == "turnout_tokens_system_per_second"
    assert names.Metric("a.b", "gauge", "1", "Share.").prometheus == "a_b_ratio"
    assert names.PREFIX_HIT.prometheus == "turnout_prefix_hit"  # a ratio's suffix is for gauges only


def test_the_conventions_metrics_have_their_names_and_units():
    known = {value for key, value in vars(gen_ai_metrics).items() if key.isupper()}
    assert {metric.name for metric in GEN_AI} <= known
    assert {metric.unit for metric in GEN_AI} == {"s", "{token}"}
    process = {value for key, value in vars(process_metrics).items() if key.isupper()}
    assert {metric.name for metric in names.METRICS if metric.name.startswith("process.")} <= process


def test_the_conventions_attributes_have_their_names():
    known = {
        value
        for module in (gen_ai_attributes, http_attributes, error_attributes)
        for key, value in vars(module).items()
        if key.isupper()
    }
    ours = {attribute.name for attribute in names.ATTRIBUTES}
    assert {name for name in ours if name.startswith(("gen_ai.", "http.", "error."))} <= known
    assert {names.OPERATION_NAME, names.PROVIDER_NAME, names.REQUEST_MODEL} <= set(names.TOKEN_USAGE.labels)
    operations = {value.value for value in gen_ai_attributes.GenAiOperationNameValues}
    assert set(names.OPERATIONS.values()) <= operations


def test_the_boundaries_are_the_ones_the_conventions_advise():
    assert names.TOKEN_USAGE.buckets[-1] == 67108864
    assert len(names.TOKEN_USAGE.buckets) == 14
    assert names.REQUEST_DURATION.buckets == tuple(round(0.01 * 2**power, 2) for power in range(14))
    assert names.TIME_TO_FIRST_TOKEN.buckets[:3] == (0.001, 0.005, 0.01)
    assert names.TIME_TO_FIRST_TOKEN.buckets[-1] == 10.0
    assert len(names.TIME_TO_FIRST_TOKEN.buckets) == 16
    assert names.TIME_PER_OUTPUT_TOKEN.buckets[0] == 0.01
    assert names.TIME_PER_OUTPUT_TOKEN.buckets[-1] == 2.5
    assert len(names.TIME_PER_OUTPUT_TOKEN.buckets) == 13
