"""The text as numbers: what the words and the counted features are, for every kind of string."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.features import HAND, read

QUESTION = "Which of these is 2.5 times Ten?\nA. one\nB. twenty 5\nC. a long answer here"
anything = st.text(alphabet=st.characters(exclude_categories=[]), max_size=300)


def value(text, name):
    return read(text).hand[HAND.index(name)]


def test_words_are_lower_case_and_digits_alike():
    assert read("Hello, WORLD 1984 x2!").words == [b"hello", b"world", b"0000", b"x0"]


def test_a_tex_command_is_one_word():
    assert read(r"$\frac{a}{b} \le \Omega$").words == [b"\\frac", b"a", b"b", b"\\le", b"\\omega"]


def test_other_alphabets_are_words():
    assert read("Ärger 数学").words == ["ärger".encode(), "数学".encode()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("words", 6),  # letters only, before the options: Which of these is times Ten
        ("options", 3),
        ("option length", (3 + 8 + 18) / 3),
        ("longest option", 18),
        ("options with digits", 1 / 3),
        ("numbers", 2),
        ("asks", 1),
        ("lines", 1),
        ("starts with a capital", 1),
        ("bytes", len(QUESTION)),
        ("longest word", 5),
        ("capitalised share", 2 / 6),
        ("phrase which of", 1),
        ("phrase prove", 0),
        ("sign ?", 1),
        ("sign .", 4),
    ],
)
def test_a_question_with_options(name, expected):
    assert value(QUESTION, name) == pytest.approx(expected)


def test_one_lettered_line_is_no_list_of_options():
    assert value("A. Smith wrote it.\nWho?", "options") == 0
    assert value("A. Smith wrote it.\nWho?", "longest option") == -1


def test_words_a_sentence():
    assert value("One two. Three four five six! Seven?", "sentences") == 3
    assert value("One two. Three four five six! Seven?", "words a sentence") == pytest.approx(7 / 3)


def test_names_are_unique():
    assert len(set(HAND)) == len(HAND)


@given(anything)
def test_any_string_gives_finite_numbers(text):
    seen = read(text)
    assert seen.hand.shape == (len(HAND),)
    assert np.isfinite(seen.hand).all()


@given(anything)
def test_the_same_text_reads_the_same(text):
    assert read(text).words == read(text).words
    assert (read(text).hand == read(text).hand).all()


@given(st.text(alphabet="ab C", max_size=40))
def test_the_word_count_is_that_of_plain_splitting(text):
    assert value(text, "words") == len(text.split())
