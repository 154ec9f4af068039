import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serve.compress.repeats import HEAD, SHORTEST, Repeats


def block(name: str, size: int = 300) -> str:
    return (f"{name} " * size)[:size].strip()


def test_the_first_stays_and_the_next_is_a_reference():
    repeats, text = Repeats(), block("alpha")
    assert repeats.without(text) == text
    short = repeats.without(f"before\n\n{text}\n\nafter")
    assert short == f"before\n\n[same as above: {text[:HEAD]}...]\n\nafter"


def test_within_one_text_too_and_blank_lines_stay():
    text = block("alpha")
    assert Repeats().without(f"{text}\n\n\n{text}\n") == f"{text}\n\n\n[same as above: {text[:HEAD]}...]\n"


@pytest.mark.parametrize(
    "other", [block("alpha") + "!", block("alpha")[1:], block("alpha").upper(), block("alpha").replace(" ", "  ")]
)
def test_only_what_is_exactly_equal_is_a_repeat(other):
    repeats = Repeats()
    repeats.without(block("alpha"))
    assert repeats.without(other) == other


def test_short_blocks_stay():
    text = "x" * (SHORTEST - 1)
    assert Repeats().without(f"{text}\n\n{text}") == f"{text}\n\n{text}"


def test_blocks_that_begin_alike_are_never_referred_to():
    repeats, one, other = Repeats(), "Licence\n" + block("one"), "Licence\n" + block("two")
    for text in (one, other, one, other):
        assert repeats.without(text) == text


def test_a_reference_given_before_another_began_alike_is_given_no_more():
    repeats, one, other = Repeats(), "Licence\n" + block("one"), "Licence\n" + block("two")
    repeats.without(one)
    assert repeats.without(one) == "[same as above: Licence...]"
    repeats.without(other)
    assert repeats.without(one) == one


def test_the_quote_is_one_line():
    text = "first line\n```not code``` " + block("x")
    repeats = Repeats()
    repeats.without(text)
    assert repeats.without(text) == "[same as above: first line...]"


@given(
    st.lists(
        st.sampled_from(
            [block(name) for name in ("one", "two", "three")]
            + ["Licence\n" + block("a"), "Licence\n" + block("b"), "short"]
        ),
        max_size=12,
    )
)
def test_every_reference_names_one_block_that_stands_above(blocks):
    repeats = Repeats()
    above: list[str] = []
    for text in blocks:
        new = repeats.without(text)
        if new == text:
            above.append(text)
            continue
        head = new.removeprefix("[same as above: ").removesuffix("...]")
        named = {one for one in above if one[:HEAD].partition("\n")[0] == head and len(one) >= SHORTEST}
        assert named == {text}
