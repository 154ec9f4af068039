"""docs/reference/metrics.md says what telemetry/names.py and the access line hold: no more and no less."""

import re
from pathlib import Path

import pytest

from telemetry import names
from telemetry.instruments import CALLERS, ERRORS, MODELS
from telemetry.logs import AccessLine

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()


def rows(heading):
    """The first cells of the table below a heading."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("metric", names.METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_a_row(metric):
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    assert (
        f"| `{metric.name}` | `{metric.prometheus}` | {metric.kind} | `{metric.unit}` | {labels} | {metric.description} |"
        in PAGE
    )


@pytest.mark.parametrize(
    "metric", [metric for metric in names.METRICS if metric.buckets], ids=lambda metric: metric.name
)
def test_the_bounds_of_every_histogram_are_a_row(metric):
    row = re.search(rf"^\| `{re.escape(metric.name)}` \| ([\d., e-]+) \|$", PAGE, re.MULTILINE)
    assert tuple(float(bound) for bound in row[1].split(", ")) == metric.buckets


@pytest.mark.parametrize("described", [*names.SPANS, *names.ATTRIBUTES], ids=lambda described: described.name)
def test_every_span_and_attribute_is_a_row(described):
    assert f"| `{described.name}` | {described.description} |" in PAGE


def test_there_is_no_row_without_its_name():
    assert rows("Metrics") == [metric.name for metric in names.METRICS]
    assert rows("Buckets") == [metric.name for metric in names.METRICS if metric.buckets]
    assert rows("Spans") == [span.name for span in names.SPANS]
    assert rows("Attributes") == [attribute.name for attribute in names.ATTRIBUTES]


def test_every_field_of_the_access_line_is_a_row():
    assert rows("Logs") == list(AccessLine.__struct_fields__)


def test_the_bounds_on_names_are_the_ones_told():
    assert f"({MODELS}, {CALLERS}, {ERRORS})" in PAGE


def test_no_metric_is_named_anywhere_in_the_docs_that_does_not_exist():
    known = {metric.prometheus for metric in names.METRICS}
    known |= {
        f"{metric.prometheus}_{part}"
        for metric in names.METRICS
        if metric.buckets
        for part in ("bucket", "sum", "count")
    }
    for page in (ROOT / "docs").rglob("*.md"):
        named = re.findall(r"\b(?:turnout|gen_ai)_[a-z_]+_(?:total|seconds|bytes|bucket|sum|count)\b", page.read_text())
        assert set(named) <= known, page.name
