"""Progress lines: what a program prints is what a build reads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.progress import Progress, line, parse, report


@settings(deadline=None)
@given(st.floats(0, 1), st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1))
def test_what_is_printed_is_read(fraction, text):
    seen = parse(line(fraction, text) + "\n")
    assert abs(seen.fraction - fraction) <= 0.0005
    assert seen.text == text


@pytest.mark.parametrize(("given_", "kept"), [(-1.0, 0.0), (1.5, 1.0)])
def test_shares_stay_between_nothing_and_all(given_, kept):
    assert parse(line(given_, "x")).fraction == kept
    assert parse(f"progress {given_} x").fraction == kept


@pytest.mark.parametrize(
    "text",
    ["", "progress", "progress x y", "progress nan y", "progress inf y", "progressive 0.5 y", "loading 0.5", "0.5"],
)
def test_other_lines_are_no_progress(text):
    assert parse(text) is None


def test_a_text_may_be_missing():
    assert parse("progress 0.5") == Progress(0.5, "")


def test_report_prints_at_once(capsys):
    report(0.25, "a quarter")
    assert capsys.readouterr().out == "progress 0.250 a quarter\n"
