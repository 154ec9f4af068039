import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serve.compress.minify import MOST_QUOTES, minified

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
).filter(lambda value: isinstance(value, dict | list))
white = st.text(" \t\r\n", max_size=3)


@st.composite
def loosely_written(draw, value):
    """The document as text, with white space wherever JSON allows it."""
    gap = lambda: draw(white)  # noqa: E731
    if isinstance(value, dict):
        fields = [
            f"{gap()}{json.dumps(k, ensure_ascii=draw(st.booleans()))}{gap()}:{gap()}{draw(loosely_written(v))}{gap()}"
            for k, v in value.items()
        ]
        return "{" + (",".join(fields) or gap()) + "}"
    if isinstance(value, list):
        return "[" + (",".join(f"{gap()}{draw(loosely_written(v))}{gap()}" for v in value) or gap()) + "]"
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


@given(documents.flatmap(loosely_written), white, white)
def test_the_document_means_the_same_and_has_no_white_space_left(text, before, after):
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    short = minified(before + text + after)
    assert short is not None
    assert json.loads(short) == json.loads(text)
    assert not re.search(r"\s", re.sub(r'"(?:[^"\\]|\\.)*"', "", short))
    assert minified(short) == short


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{ "a" : 1 }', '{"a":1}'),
        ("[1.50, 1E5, 1e+5, -0.0, 12345678901234567890123]", "[1.50,1E5,1e+5,-0.0,12345678901234567890123]"),
        ('{"b": 1, "a": 2, "b": 3}', '{"b":1,"a":2,"b":3}'),
        (r'{"a": "\u00e9 \/ \" \\ \n , : "}', r'{"a":"\u00e9 \/ \" \\ \n , : "}'),
        (r'["\\", "\\\"", "\\\\", ": \" : "]', r'["\\","\\\"","\\\\",": \" : "]'),
        ('{"é": "  你好  "}', '{"é":"  你好  "}'),
        ("[ ]", "[]"),
        (' {"a": [ { } , [ ] ]}\n', '{"a":[{},[]]}'),
        ('{"nbsp":\t"\u00a0\u2028"}', '{"nbsp":"\u00a0\u2028"}'),
    ],
)
def test_every_other_byte_is_kept(text, expected):
    assert minified(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "plain words", "7", '"text"', "null", "{", '{"a": 1', '{"a": 1} and more', '{"a": 1} {"b": 2}', "[1 2]",
        "[1, 2,]", '{"a": NaN}', "{'a': 1}", '["line\nbreak"]', "[1] // comment", "[same as above: x...]", "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_one_whole_document_is_not_touched(text):
    assert minified(text) is None


def test_a_document_too_large_to_be_worth_the_time_stays_as_it_is():
    text = json.dumps([""] * (MOST_QUOTES // 2 + 1))
    assert minified(text) is text
