"""Usage, wherever and however an engine says it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.usage import read_usage, usage_of_document
from telemetry.usage import Usage


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}, Usage(5, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(5, 2, 4)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(5, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 3}, Usage(5, 2, 3)),
        ({"prompt_tokens": 5}, Usage(5, 0)),
        ({"prompt_tokens": 5.0, "completion_tokens": None}, Usage(5, 0)),
        ({"prompt_tokens": True, "completion_tokens": 2}, Usage(0, 2)),
        ({"prompt_tokens": "5"}, None),
        ({}, None),
        (None, None),
        ([1], None),
    ],
)
def test_read_usage(value: object, usage: Usage | None) -> None:
    assert read_usage(value) == usage


def test_what_says_nothing_leaves_what_was_known() -> None:
    before = Usage(5, 2, 4)
    assert read_usage(None, before) is before
    assert read_usage({"prompt_tokens": 5, "completion_tokens": 3}, before) == Usage(5, 3, 4)


@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize("first", [False, True])
def test_the_usage_of_a_document(size: int, first: bool) -> None:
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1}, "total_tokens": 9}
    data = [{"index": 0, "embedding": "A" * size, "note": 'the "usage": {"prompt_tokens": 1}'}]
    document = {"usage": usage, "data": data} if first else {"data": data, "usage": usage}
    raw = json.dumps(document).encode()
    assert usage_of_document([raw]) == Usage(9, 0, 1)
    assert usage_of_document([raw[:7], raw[7:]]) == Usage(9, 0, 1)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"usage": 3}', b"x" * 300_000, b'"usage": {' + b" " * 300_000])
def test_a_document_without_usage(raw: bytes) -> None:
    assert usage_of_document([raw]) is None


@given(st.binary(max_size=100))
def test_any_document_can_be_read(raw: bytes) -> None:
    usage_of_document([raw])
