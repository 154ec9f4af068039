"""The meter: times of the first byte, the first token and the last, and time per token from usage alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.usage import Meter, Usage
from tests.support.telemetry import Clock


def metered(tokens, *, completion_tokens=None, step=1.0):
    """A meter that saw one chunk each `step` seconds, from second `step` on."""
    meter = Meter(Clock(step=step))
    for token in tokens:
        meter.chunk(10, token=token)
    if completion_tokens is not None:
        meter.usage = Usage(completion_tokens=completion_tokens)
    return meter


def test_bytes_and_chunks_are_counted():
    meter = metered([False, True, True])
    assert (meter.size, meter.chunks) == (30, 3)


def test_a_chunk_without_a_token_is_a_first_byte_but_no_first_token():
    meter = metered([False, False, True, True])
    assert (meter.first_byte_at, meter.first_token_at, meter.last_token_at) == (1, 3, 4)
    assert metered([False]).first_token_at is None


def test_time_per_token_counts_tokens_and_not_chunks():
    meter = metered([True, True, True], completion_tokens=21)  # several tokens in a chunk
    assert meter.time_per_output_token == pytest.approx(2 / 20)


@pytest.mark.parametrize(
    ("tokens", "completion_tokens"),
    [([True, True], None), ([False], 5), ([True], 1), ([True], 0), ([], 5)],
)
def test_no_time_per_token_where_it_cannot_be_told(tokens, completion_tokens):
    assert metered(tokens, completion_tokens=completion_tokens).time_per_output_token is None


def test_a_second_attempt_starts_from_nothing():
    meter = metered([True, True], completion_tokens=5)
    meter.finished = True
    meter.restart()
    assert (meter.size, meter.chunks, meter.usage, meter.finished) == (0, 0, None, False)
    assert meter.first_byte_at is meter.first_token_at is meter.last_token_at is None
    meter.chunk(1, token=True)
    assert meter.first_token_at == 3  # by the same clock


@given(st.lists(st.booleans(), min_size=1), st.integers(2, 10_000), st.floats(0.001, 10))
def test_the_parts_add_up(tokens, completion_tokens, step):
    meter = metered(tokens, completion_tokens=completion_tokens, step=step)
    if any(tokens):
        assert meter.first_byte_at <= meter.first_token_at <= meter.last_token_at
        whole = meter.time_per_output_token * (completion_tokens - 1)
        assert whole == pytest.approx(meter.last_token_at - meter.first_token_at)
    else:
        assert meter.time_per_output_token is None
