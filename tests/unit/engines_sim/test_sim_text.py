from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.sim import text


@given(st.text(max_size=200))
def test_pieces_are_the_text(words):
    assert b"".join(text.pieces(words)).decode() == words
    assert len(text.tokenize(words)) == len(text.pieces(words))


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_common_head_gives_common_tokens_up_to_the_seam(head, tail):
    """Only the last piece of the head may change when words follow it."""
    before, after = text.tokenize(head), text.tokenize(head + tail)
    assert before[:-1] == after[: max(len(before) - 1, 0)]


def test_a_token_is_about_four_bytes():
    assert 4000 < len(text.tokenize("lorem ipsum dolor sit amet " * 800)) < 8800


@given(st.integers(0, 5), st.integers(0, 3), st.integers(1, 60))
def test_an_answer_has_as_many_tokens_as_words(seed, choice, count):
    words = text.answer(array("I", [1, 2, 3]), seed, choice, count)
    assert len(words) == len(text.tokenize("".join(words))) == count


def test_an_answer_depends_on_prompt_seed_and_choice_alone():
    one = text.answer(array("I", [1]), 0, 0, 20)
    assert one == text.answer(array("I", [1]), 0, 0, 20)
    assert one[:5] == text.answer(array("I", [1]), 0, 0, 5)
    others = [
        text.answer(array("I", [2]), 0, 0, 20),
        text.answer(array("I", [1]), 1, 0, 20),
        text.answer(array("I", [1]), 0, 1, 20),
    ]
    assert len({tuple(words) for words in [one, *others]}) == 4


def test_an_answer_of_two_words_has_one_that_is_not_ascii():
    assert not "".join(text.answer(array("I", [7]), 0, 0, 2)).isascii()


def test_a_conversation_that_goes_on_keeps_its_head():
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]
    longer = [*first, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "And now?"}]
    short, long = text.chat_prompt(first), text.chat_prompt(longer)
    assert long.startswith(short.removesuffix("<|assistant|>\n"))


def test_tools_come_first():
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert text.chat_prompt([{"role": "user", "content": "x"}], tools).startswith("<|tools|>")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("plain", "plain"),
        (None, ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        (["a", "b"], "ab"),
        ([{"type": "image_url", "image_url": {"url": "u"}}], '{"type":"image_url","image_url":{"url":"u"}}'),
        (7, ""),
    ],
)
def test_content_of_every_shape(content, words):
    assert text.content_text(content) == words


def test_tool_calls_are_part_of_the_prompt():
    with_call = text.chat_prompt([{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}])
    assert '"id":"1"' in with_call


@given(st.text(max_size=40), st.integers(1, 80))
def test_vectors_are_unit_and_the_same_again(words, dimensions):
    vector = text.vector(words, dimensions)
    assert len(vector) == dimensions
    assert sum(value * value for value in vector) == pytest.approx(1)
    assert vector == text.vector(words, dimensions)


def test_other_texts_have_other_vectors():
    assert text.vector("a", 8) != text.vector("b", 8)
