import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serve.compress.whitespace import tidied

texts = st.text("ab \t\r\n", max_size=60)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a  \nb", "a\nb"),
        ("a\t\nb", "a\nb"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("  a \n    b \n", "  a\n    b\n"),
        ("a\n\nb", "a\n\nb"),
        ("a\n\n\nb", "a\n\n\nb"),
        ("a\n\n\n\nb", "a\n\n\nb"),
        ("a" + "\n" * 5000 + "b", "a\n\n\nb"),
        ("a\n \n\t\n \n \nb", "a\n\n\nb"),
        ("a  b", "a  b"),
        ("a\u00a0\nb\u3000\nc", "a\u00a0\nb\u3000\nc"),
    ],
)
def test_ends_of_lines_and_runs_of_blank_lines(text, expected):
    assert tidied(text) == expected


@given(texts)
def test_words_and_indents_stay_and_nothing_is_left_to_do(text):
    new = tidied(text)
    assert new.split() == text.split()
    assert tidied(new) == new
    assert len(new) <= len(text)
    assert [line for line in (one.rstrip() for one in text.split("\n")) if line] == [
        line for line in (one.rstrip() for one in new.split("\n")) if line
    ]


@pytest.mark.parametrize("text", ["", "a", "a\nb\n\n\nc", "  indented\n\ttoo"])
def test_a_tidy_text_is_the_same_object(text):
    assert tidied(text) is text
