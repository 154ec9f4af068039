"""Reading a prompt out of a request: whatever it holds, and never more than a bounded part of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.prompt import LIMIT, bounded, from_messages, from_text


def chat(*messages):
    return json.dumps([{"role": role, "content": content} for role, content in messages]).encode()


def test_the_last_user_turn_is_the_text():
    prompt = from_messages(chat(("system", "be brief"), ("user", "one"), ("assistant", "1"), ("user", "two")))
    assert (prompt.text, prompt.system, prompt.turns, prompt.size) == ("two", "be brief", 2, 3)


def test_a_tool_result_after_the_user_is_not_the_question():
    assert from_messages(chat(("user", "ask"), ("assistant", None), ("tool", "result"))).text == "ask"


def test_parts_are_joined_and_images_noticed():
    parts = [
        {"type": "text", "text": "what is"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "this"},
    ]
    prompt = from_messages(chat(("user", parts)))
    assert prompt.text == "what is\nthis"
    assert prompt.has_images


def test_what_the_caller_knows_is_kept():
    prompt = from_messages(chat(("user", "x")), has_tools=True, max_tokens=9)
    assert (prompt.has_tools, prompt.max_tokens, prompt.has_images) == (True, 9, False)


def test_developer_text_is_system_text():
    assert from_messages(chat(("developer", "a"), ("system", "b"), ("user", "c"))).system == "a\nb"


def test_no_user_turn_is_an_empty_text():
    assert from_messages(b"[]").text == ""
    assert from_messages(chat(("system", "s"))).turns == 0


def test_lone_surrogates_are_read():
    assert from_messages(b'[{"role":"user","content":"a\\ud800b"}]').text == "a\ud800b"


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[{"role":"user","content":5}]', b'[{"role":', b"\xff"])
def test_what_is_no_list_of_messages_is_refused(body):
    with pytest.raises(ValueError, match="not a list of chat messages"):
        from_messages(body)


def test_a_long_text_keeps_its_head_and_its_tail():
    text = "h" * 500_000 + "t" * 500_000
    prompt = from_text(text)
    assert prompt.size == 1_000_000
    assert len(prompt.text) == LIMIT + 1
    assert prompt.text.startswith("hhh")
    assert prompt.text.endswith("ttt")


@given(st.text(max_size=60), st.integers(2, 40))
def test_a_bounded_text_is_the_text_or_shorter_than_it_seems(text, limit):
    found = bounded(text, limit)
    assert len(found) <= limit + 1
    if len(text) <= limit:
        assert found == text
    else:
        assert found == text[: limit // 2] + "\n" + text[-(limit // 2) :]


@given(st.text(max_size=200))
def test_a_message_reads_as_its_text(text):
    assert from_messages(chat(("user", text))).text == from_text(text).text
