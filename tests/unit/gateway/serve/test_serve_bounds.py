"""What one request may cost everybody else: beyond a bound it is sent as it is, and judged as one that says nothing."""

import json

import pytest

from classifier.prompt import from_messages
from classifier.score import Scorer
from gateway.serve.body import Body
from gateway.serve.compress import lossless
from gateway.serve.difficulty import MOST_PARTS, Judge

LOOSE = {"role": "user", "content": "one  \n\n\n\n\n\ntwo\n\nWhat is it?"}
HARD = "Prove that there are infinitely many primes of the form 4k+3, in full detail."


def chat(messages):
    return Body.parse(json.dumps({"model": "m", "messages": messages}).encode(), "chat")


@pytest.fixture(scope="module")
def judge():
    return Judge(Scorer.load(None))


def test_very_many_messages_are_sent_as_they_are():
    few = lossless.examine(chat([LOOSE] * lossless.MOST_MESSAGES))
    many = lossless.examine(chat([LOOSE] * (lossless.MOST_MESSAGES + 1)))
    assert few.messages is not None
    assert (many.messages, many.reason) == (None, f"more than {lossless.MOST_MESSAGES} messages")


def test_very_many_messages_or_parts_are_judged_as_nothing(judge):
    nothing = judge(chat([{"role": "user", "content": ""}]))
    part = {"type": "text", "text": "a"}
    asked = {"role": "user", "content": HARD}
    assert judge(chat([asked] * 10)) != nothing
    assert judge(chat([asked] * (MOST_PARTS + 1))) == nothing
    assert judge(chat([{"role": "user", "content": [part] * MOST_PARTS}, asked])) == nothing


def test_braces_and_quotes_in_a_text_are_no_parts(judge):
    code = '{"role": "type"}' * MOST_PARTS
    messages = [{"role": "system", "content": code}, {"role": "user", "content": HARD}]
    assert judge(chat(messages)) == judge(chat([{"role": "user", "content": HARD}]))


@pytest.mark.parametrize("depth", range(100, 1000, 50))
def test_a_message_of_any_depth_is_judged(judge, depth):
    messages = b"[" * depth + b"]" * depth
    raw = b'{"model":"m","messages":[{"role":"user","content":' + messages + b"}]}"
    assert judge(Body.parse(raw, "chat"))


def test_what_is_no_list_of_messages_is_not_read_twice(monkeypatch):
    """The standard library's reader is slow, and only there for half surrogates."""
    monkeypatch.setattr("classifier.prompt.json", None)
    with pytest.raises(ValueError, match="not a list of chat messages"):
        from_messages(b"[[[1]]]")
