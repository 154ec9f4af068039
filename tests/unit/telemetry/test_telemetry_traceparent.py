"""The traceparent header: what is valid, what is ignored, and that reading undoes writing."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.traceparent import Context, parse, state, written

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_reading_undoes_writing(trace, span, sampled):
    context = Context(trace, span, sampled)
    assert parse(written(context)) == context
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", written(context))


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # a flag of a later level
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-01", True),  # a later version
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_valid_headers(header, sampled):
    assert parse(header) == Context(int(TRACE, 16), int(SPAN, 16), sampled)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-extra",  # version 0 has four fields
        f"cc-{TRACE}-{SPAN}-01extra",
        f"cc-{TRACE}-{SPAN}-01-\n",
        f"ff-{TRACE}-{SPAN}-01",  # forbidden version
        f"0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"00-{TRACE}-{SPAN}-0g",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",  # sent twice
        f"00-{'٠' * 32}-{SPAN}-01",  # digits, but not ASCII
    ],
)
def test_invalid_headers_are_ignored(header):
    assert parse(header) is None


@given(st.text(max_size=80))
def test_no_text_makes_it_fail(text):
    context = parse(text)
    assert context is None or written(context)[3:52] == text[3:52]


@given(st.text(alphabet=string.hexdigits + "-", min_size=55, max_size=55))
def test_near_misses_are_read_right_or_not_at_all(text):
    context = parse(text)
    if context is not None:
        assert text == text.lower()
        assert written(context)[3:52] == text[3:52]


@pytest.mark.parametrize("header", ["a=1", "vendor@tenant=x, other=y", "k=" + "v" * 510])
def test_a_tracestate_is_passed_on_as_it_came(header):
    assert state(header) == header


@pytest.mark.parametrize("header", [None, "", "k=" + "v" * 511, "a=1\r\nx-evil: 1", "a=\x00", "a=ü"])
def test_a_tracestate_that_is_not_one_is_dropped(header):
    assert state(header) == ""
