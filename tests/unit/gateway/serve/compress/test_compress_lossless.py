import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.serve.body import Body
from gateway.serve.compress import lossless as module
from gateway.serve.compress.lossless import MOST_BYTES, Removed, examine, lossless

BLOCK = ("The quick brown fox jumps over the lazy dog, and then it does the same once more. " * 4).strip()
OTHER = "Licence text that several files begin with\n" + "and goes on with something of its own, one. " * 6
THIRD = "Licence text that several files begin with\n" + "and goes on with something of its own, two. " * 6


def parse(messages: object, **more: object) -> Body:
    return Body.parse(json.dumps({"model": "m", "messages": messages, **more}).encode(), "chat")


def user(content):
    return {"role": "user", "content": content}


def tool(content):
    return {"role": "tool", "tool_call_id": "1", "content": content}


def after(*messages) -> list:
    """The messages as sent."""
    body = parse(list(messages))
    return json.loads(lossless(body) or body.prompt_text)


def texts(*messages) -> list:
    return [message["content"] for message in after(*messages)]


# --- what is removed


def test_json_of_a_tool_is_minified_byte_for_byte():
    content = '{\n  "b": 1.50,\n  "a": "x  \\u00e9 \\" y",\n  "b": 2e3\n}'
    assert texts(tool(content)) == ['{"b":1.50,"a":"x  \\u00e9 \\" y","b":2e3}']


def test_white_space_in_a_tools_text():
    assert texts(tool("a  \nb\n\n\n\n\nc\t\n")) == ["a\nb\n\n\nc\n"]


def test_white_space_in_a_users_document_but_not_in_the_question():
    assert texts(user("doc  \nline \n\n\n\n\nmore\n\nthe question  \n with odd  \n\tspace  ")) == [
        "doc\nline\n\n\nmore\n\nthe question  \n with odd  \n\tspace  "
    ]


def test_a_block_that_came_before():
    short = f"[same as above: {BLOCK[:60]}...]"
    assert texts(tool(BLOCK), tool(f"new\n\n{BLOCK}")) == [BLOCK, f"new\n\n{short}"]
    assert texts(tool(BLOCK), user(f"{BLOCK}\n\nWhat is new?")) == [BLOCK, f"{short}\n\nWhat is new?"]


def test_a_document_that_the_user_sends_twice():
    short = f"[same as above: {BLOCK[:60]}...]"
    assert texts(user(f"{BLOCK}\n\nOne?"), user(f"{BLOCK}\n\nTwo?")) == [f"{BLOCK}\n\nOne?", f"{short}\n\nTwo?"]


@pytest.mark.parametrize("space", [" ", "\\u0020", "\\t", "\\u0009", "\\r", "\\u000D"])
@pytest.mark.parametrize("newline", ["\\n", "\\u000a", "\\u000A"])
def test_white_space_is_found_however_it_is_escaped(space, newline):
    raw = f'{{"model":"m","messages":[{{"role":"user","content":"a{space}{newline}b{newline}{newline}q"}}]}}'.encode()
    body = Body.parse(raw, "chat")
    assert lossless(body) == b'[{"role":"user","content":"a\\nb\\n\\nq"}]'


def test_each_rule_says_what_it_removed():
    found = examine(parse([tool('{ "a": 1 }'), tool("x  \ny \n"), tool(BLOCK), tool(BLOCK)]))
    assert found.removed == Removed(json=3, whitespace=3, repeats=len(BLOCK) - len(f"[same as above: {BLOCK[:60]}...]"))
    assert found.reason == ""


def test_bytes_are_counted_not_characters():
    content = "é" * 3 + '\u00a0 \n{"你": 1}'
    assert examine(parse([tool(content)])).removed == Removed(whitespace=1)
    assert examine(parse([tool('{"你" : "好"}')])).removed == Removed(json=2)


def test_text_parts_of_an_array_and_nothing_else_of_it():
    image = {"type": "image_url", "image_url": {"url": "data:  \n"}}
    before = [
        {"type": "text", "text": "doc  \n\nend "},
        image,
        {"type": "text", "text": "the question  \n"},
        {"type": "later", "text": "a  \n\nb"},
        "odd",
    ]
    (message,) = after(user(before))
    assert message["content"] == [{"type": "text", "text": "doc\n\nend "}, *before[1:]]


# --- what is never touched

LOOSE = "words  \nand\t\nmore \n\n\n\n\n\nend  \n\nlast  "


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": LOOSE}],
        [{"role": "developer", "content": LOOSE}],
        [{"role": "assistant", "content": LOOSE}],
        [{"role": "critic", "content": LOOSE}],
        [{"role": "system", "content": BLOCK}, {"role": "system", "content": BLOCK}],
        [tool(BLOCK), {"role": "system", "content": BLOCK}, {"role": "assistant", "content": BLOCK}],
        [user("one paragraph  \nof a question \n")],
        [user(BLOCK), user(BLOCK)],
        [user(f"intro\n\n{BLOCK}"), user(f"again\n\n{BLOCK}")],
        [user("doc\n\n```\ncode  \n\n\n\n\n\nmore \n```\n\nquestion")],
        [tool("```\ncode  \n\n\n\n\n\nmore \n")],
        [tool(f"```\n{BLOCK}\n```\n"), tool(f"```\n{BLOCK}\n```\n")],
        [tool(f'{{"a":"{BLOCK}"}}'), tool(f'{{"a":"{BLOCK}"}}')],
        [tool(OTHER), tool(THIRD), tool(OTHER), tool(THIRD)],
        [user('{ "a" :  1 }\n\n{ "b" :  2 }')],
        [tool(None), tool(7), tool({}), tool([]), tool([7]), user(None), {"role": "user"}, {"role": "tool"}],
        [
            {"role": None, "content": LOOSE},
            {"role": 7, "content": LOOSE},
            {"content": LOOSE},
            {},
            7,
            "x",
            None,
            [LOOSE],
        ],
        [],
    ],
)
def test_left_alone(messages):
    found = examine(parse(messages))
    assert (found.messages, found.reason) == (None, "nothing to remove")


def test_tool_schemas_stay():
    body = parse([tool("a  \nb \n")], tools=[{"name": "f", "description": "a  \n\n\n\n\n\nb"}])
    sent = json.loads(body.shaped(model="m", text=lossless(body)))
    assert sent["tools"] == [{"name": "f", "description": "a  \n\n\n\n\n\nb"}]
    assert sent["messages"][0]["content"] == "a\nb\n"


def test_every_other_byte_of_the_conversation_stays():
    raw = (
        b'[ {"role" : "system","content":"\\u00e9 \xc3\xa9"} ,\n\t{"x": 1.50, "role":"tool","content":"[ 1 ]","tool_call_id":"\\/"},'
        b'{"role":"assistant","content":null,"tool_calls":[{"id": "1" , "n":1E2}]} ]'
    )
    body = Body.parse(b'{"model":"m","messages":%s}' % raw, "chat")
    assert lossless(body) == (
        b'[ {"role" : "system","content":"\\u00e9 \xc3\xa9"} ,\n\t{"x":1.50,"role":"tool","content":"[1]","tool_call_id":"\\/"},'
        b'{"role":"assistant","content":null,"tool_calls":[{"id": "1" , "n":1E2}]} ]'
    )


@pytest.mark.parametrize("operation", ["completions", "embeddings"])
def test_only_chats(operation):
    body = Body.parse(b'{"model":"m","prompt":"a  \\n\\n\\n\\n\\n","input":"a  \\n\\n\\n\\n\\n"}', operation)
    assert examine(body).reason == "not a chat"


# --- bounds


def test_what_comes_after_the_bound_is_sent_as_it_is():
    filler = [{"role": "assistant", "content": "x" * (MOST_BYTES // 4)}] * 4
    sent = after(tool("a  \nb"), *filler, tool("a  \nb"))
    assert (sent[0]["content"], sent[-1]["content"]) == ("a\nb", "a  \nb")


def test_a_text_of_very_many_lines_is_sent_as_it_is():
    assert examine(parse([tool("a \n" * 30_000)])).messages is None
    assert examine(parse([tool("a \n" * 10_000)])).removed.whitespace == 10_000


@pytest.mark.parametrize(
    "content",
    [
        " " * 400_000,
        "\n" * 400_000,
        "```" * 150_000,
        "~" * 400_000,
        "```\n" * 15_000,
        "\t \r" * 100_000 + "\n",
        '"' * 400_000,
        "[" * 400_000,
        "\\" * 400_000,
    ],
)
def test_odd_texts_of_great_length_end(content):
    body = parse([tool(content), user(content + "\n\nq")])
    for message in json.loads(lossless(body) or body.prompt_text):
        text = message["content"]
        assert text.startswith("[same as above: ") or set(text) <= set(content + "\n\nq")


def test_a_surprise_means_that_nothing_is_done(monkeypatch):
    def surprise(text):
        raise KeyError(text)

    monkeypatch.setattr(module, "tidied", surprise)
    found = examine(parse([tool("a  \nb")]))
    assert (found.messages, found.removed, found.reason) == (None, Removed(), "not understood: KeyError")


# --- properties

lines = st.sampled_from(
    [
        "", "", " ", "\t", "word", "two words  ", "\tindented \r", "```", "```py", "~~~", BLOCK, f"{BLOCK} ", OTHER, THIRD,
        "é 你好 \u2028", "\\n \\", '"quoted" ', "[same as above: The quick...]",
    ]
)  # fmt: skip
prose = st.lists(lines, max_size=8).map("\n".join)
documents = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.just(BLOCK),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
).map(lambda value: json.dumps(value, indent=2, ensure_ascii=False))
content = prose | documents
parts = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, content)
    | st.just({"type": "image_url", "image_url": {"url": "u"}}),
    max_size=3,
)
messages = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "user", "tool", "tool", "system", "assistant", "developer", "function"]),
    content | parts | st.none(),
)
conversations = st.lists(messages, max_size=7)
writers = st.sampled_from(
    [
        {"ensure_ascii": True}, {"ensure_ascii": False}, {"separators": (",", ":")}, {"indent": 1},
    ]
)  # fmt: skip


def sent(conversation: list, writer: dict) -> bytes:
    body = Body.parse(json.dumps({"model": "m", "messages": conversation}, **writer).encode(), "chat")
    return lossless(body) or body.prompt_text


@settings(max_examples=100)
@given(conversations, st.data(), writers)
def test_what_was_sent_once_is_sent_the_same_again(conversation, data, writer):
    """compress(m[:n]) is a prefix of compress(m[:n+1]): in every message, and in the bytes before the last bracket."""
    cut = data.draw(st.integers(0, len(conversation)))
    whole, start = sent(conversation, writer), sent(conversation[:cut], writer)
    assert json.loads(whole)[:cut] == json.loads(start)
    if conversation[:cut]:
        assert whole.startswith(start.rstrip()[:-1].rstrip())


@settings(max_examples=100)
@given(conversations, writers)
def test_the_same_in_the_same_out_and_nothing_left_to_do(conversation, writer):
    once = sent(conversation, writer)
    assert sent(conversation, writer) == once
    again = Body.parse(b'{"model":"m","messages":%s}' % once, "chat")
    assert lossless(again) is None


@settings(max_examples=100)
@given(conversations, writers)
def test_what_it_may_not_touch_it_does_not_and_the_rest_says_the_same(conversation, writer):
    new = json.loads(sent(conversation, writer))
    assert len(new) == len(conversation)
    for was, now in zip(conversation, new, strict=True):
        assert {**was, "content": None} == {**now, "content": None}
        if was["role"] in ("system", "developer", "assistant"):
            assert was == now
        elif isinstance(was["content"], list):
            for one, other in zip(was["content"], now["content"], strict=True):
                _same(was["role"], one.get("text"), other.get("text"))
        else:
            _same(was["role"], was["content"], now["content"])


def _same(role: str, was: str | None, now: str | None) -> None:
    if was is None or now is None:
        assert was is now
        return
    assert len(now) <= len(was)
    if role == "user":
        question = was.rstrip().replace("\r", "").split("\n\n")[-1]
        assert now.rstrip().replace("\r", "").endswith(question)
        assert was[len(was.rstrip()) :] == now[len(now.rstrip()) :]
    if role in ("tool", "function") and was[:1] in ("{", "["):
        try:
            meant = json.loads(was)
        except ValueError:
            return
        assert json.loads(now) == meant


@given(conversations)
def test_what_is_gained_is_what_is_reported(conversation):
    body = parse(conversation)
    found = examine(body)
    removed = found.removed.json + found.removed.whitespace + found.removed.repeats
    assert (found.messages is None) == (removed == 0)
    if found.messages is not None:
        assert len(found.messages) < len(body.prompt_text)
        before, now = (sum(map(_bytes, json.loads(raw))) for raw in (body.prompt_text, found.messages))
        assert before - now == removed


def _bytes(message: dict) -> int:
    content = message["content"]
    if isinstance(content, list):
        return sum(len(part.get("text", "").encode()) for part in content)
    return len((content or "").encode())
