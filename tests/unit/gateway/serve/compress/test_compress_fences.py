import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serve.compress.fences import MOST, pieces

lines = st.lists(
    st.sampled_from(
        [
            "",
            " ",
            "text",
            "```",
            "```python",
            "~~~",
            "````",
            "  ```",
            "- ```",
            "> ```",
            "a ``` b",
            "```x```",
            "``",
            "\t~~~~ ",
        ]
    ),
    max_size=12,
)


@given(lines.map("\n".join) | st.text("`~ \nab", max_size=40))
def test_the_pieces_joined_are_the_text(text):
    found = pieces(text)
    assert "".join(piece.text for piece in found) == text
    assert all(piece.text for piece in found)
    assert all(piece.text.endswith("\n") for piece in found[:-1])


def fenced(text: str) -> list[str]:
    return [piece.text for piece in pieces(text) if piece.fenced]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no code", []),
        ("a\n```\nx\n```\nb", ["```\nx\n```\n"]),
        ("a\n```python\nx\n\n\n\ny  \n```\nb", ["```python\nx\n\n\n\ny  \n```\n"]),
        ("~~~\nx\n```\ny\n~~~", ["~~~\nx\n```\ny\n~~~"]),
        ("````\n```\n````\n", ["````\n```\n````\n"]),
        ("```\nx\n``` not closed\ny\n```\n", ["```\nx\n``` not closed\ny\n```\n"]),
        ("a\n```\nnever closed\n\n\n", ["```\nnever closed\n\n\n"]),
        ("- ```sh\n  ls\n  ```\nb", ["- ```sh\n  ls\n  ```\n"]),
        ("> ```\n> x\n> ```\nb", ["> ```\n> x\n> ```\n"]),
        ("use ```this``` inline", []),
        ("```this``` is inline too", []),
        ("word ```\nx", []),
        ("```\na\n```\nmiddle\n```\nb\n```", ["```\na\n```\n", "```\nb\n```"]),
        ("```\na\n```  \nb", ["```\na\n```  \n"]),
    ],
)
def test_where_code_begins_and_ends(text, expected):
    assert fenced(text) == expected


def test_a_text_with_very_many_marks_counts_as_code():
    text = "```\na\n```\n" * MOST
    assert fenced(text) == [text]
