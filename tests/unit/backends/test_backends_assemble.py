"""A streamed answer put together again is the document the server would have sent."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.assemble import Assembly, ToolCalls

Json = dict[str, object]


def assemble(*chunks: Json) -> Json:
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(chunk)
    found: Json = json.loads(assembly.document())
    return found


def delta(index: int = 0, finish: str | None = None, **fields: object) -> Json:
    choice = {"index": index, "delta": fields, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]}


def calls(*fragments: Json) -> list[Json]:
    found = ToolCalls()
    for fragment in fragments:
        found.add(fragment)
    return found.document()


def part(
    index: int | None = None, id_: str | None = None, name: str | None = None, arguments: str | None = None
) -> Json:
    """A fragment of a tool call; what is not given is not there."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    named = {key: value for key, value in (("index", index), ("id", id_)) if value is not None}
    return {**named, "function": function}


def told(found: list[Json]) -> list[tuple[object, object, object]]:
    return [(call.get("id"), call["function"].get("name"), call["function"].get("arguments")) for call in found]  # type: ignore[attr-defined]


def test_a_chat_answer() -> None:
    found = assemble(
        delta(role="assistant", content=None),
        delta(content="Hé"),
        delta(content="llo"),
        delta(finish="stop"),
        {
            "id": "c1",
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        },
    )
    assert found == {
        "id": "c1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Héllo"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }


def test_a_completion() -> None:
    def piece(text: str, finish: str | None = None) -> Json:
        return {
            "id": "t",
            "object": "text_completion",
            "choices": [{"index": 0, "text": text, "finish_reason": finish}],
        }

    found = assemble(piece("a"), piece("b"), piece("", "length"))
    assert found["object"] == "text_completion"
    assert found["choices"] == [{"text": "ab", "index": 0, "finish_reason": "length"}]


def test_choices_by_index_whatever_their_order() -> None:
    found = assemble(
        delta(1, content="b"),
        delta(0, content="a"),
        delta(1, content="B"),
        delta(1, "length"),
        delta(0, "stop", content="A"),
    )
    answers = [(c["index"], c["message"]["content"], c["finish_reason"]) for c in found["choices"]]  # type: ignore[attr-defined]
    assert answers == [(0, "aA", "stop"), (1, "bB", "length")]


def test_all_kinds_of_text() -> None:
    found = assemble(
        delta(reasoning_content="let "),
        delta(reasoning_content="me"),
        delta(reasoning="x"),
        delta(refusal="n"),
        delta(refusal="o"),
    )
    message = found["choices"][0]["message"]  # type: ignore[index]
    assert message == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "let me",
        "reasoning": "x",
        "refusal": "no",
    }


def test_an_answer_without_a_word_is_empty_and_not_null() -> None:
    found = assemble(delta(role="assistant", content=None), delta(finish="stop"))
    assert found["choices"][0]["message"] == {"role": "assistant", "content": ""}  # type: ignore[index]


def test_logprobs_go_on() -> None:
    one, two = {"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}
    chunks = [
        {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [entry], "refusal": None}}]}
        for entry in (one, two)
    ]
    assert assemble(*chunks)["choices"][0]["logprobs"] == {"content": [one, two], "refusal": None}  # type: ignore[index]
    lists = [{"choices": [{"index": 0, "text": t, "logprobs": {"tokens": [t], "token_logprobs": [-1]}}]} for t in "ab"]
    assert assemble(*lists)["choices"][0]["logprobs"] == {"tokens": ["a", "b"], "token_logprobs": [-1, -1]}  # type: ignore[index]
    assert assemble({"choices": [{"index": 0, "delta": {}, "logprobs": None}]})["choices"][0]["logprobs"] is None  # type: ignore[index]


def test_unknown_fields_are_kept_and_the_last_wins() -> None:
    first = delta(content="x", annotations=[1])
    first["choices"][0]["stop_reason"] = None  # type: ignore[index]
    last = delta(finish="stop", annotations=[2])
    last["choices"][0]["stop_reason"] = "\n"  # type: ignore[index]
    found = assemble(
        {**first, "timings": {"n": 1}, "system_fingerprint": "f"},
        {**last, "timings": {"n": 2}, "system_fingerprint": None},
    )
    assert (found["timings"], found["system_fingerprint"]) == ({"n": 2}, "f")
    choice = found["choices"][0]  # type: ignore[index]
    assert (choice["stop_reason"], choice["message"]["annotations"]) == ("\n", [2])


def test_odd_chunks_do_no_harm() -> None:
    found = assemble(
        {"choices": None}, {"choices": [None, 3]}, {"choices": [{"index": None, "delta": None}]}, delta(content="x")
    )
    assert found["choices"][0]["message"]["content"] == "x"  # type: ignore[index]


def test_a_legacy_function_call() -> None:
    found = assemble(
        delta(function_call={"name": "f", "arguments": ""}),
        delta(function_call={"arguments": "{"}),
        delta(function_call={"arguments": "}"}),
    )
    assert found["choices"][0]["message"]["function_call"] == {"name": "f", "arguments": "{}"}  # type: ignore[index]


# --- tool calls ---


def test_one_call_as_openai_streams_it() -> None:
    found = calls({**part(0, "a", "f", ""), "type": "function"}, part(0, arguments='{"x"'), part(0, arguments=":1}"))
    assert found == [{"type": "function", "id": "a", "function": {"name": "f", "arguments": '{"x":1}'}}]


def test_the_message_holds_them_without_index() -> None:
    found = assemble(
        delta(tool_calls=[part(0, "a", "f", "{}")]), delta(tool_calls=[part(1, "b", "g", "{}")], finish="tool_calls")
    )
    message = found["choices"][0]["message"]  # type: ignore[index]
    assert [sorted(call) for call in message["tool_calls"]] == [["function", "id", "type"]] * 2
    assert message["content"] is None


CASES = {
    "interleaved by index": (
        [
            part(0, "a", "f", ""),
            part(1, "b", "g", ""),
            part(0, arguments="1"),
            part(1, arguments="2"),
            part(0, arguments="3"),
        ],
        [("a", "f", "13"), ("b", "g", "2")],
    ),
    "interleaved by id alone": (
        [
            part(None, "a", "f", ""),
            part(None, "b", "g", ""),
            part(None, "a", arguments="1"),
            part(None, "b", arguments="2"),
        ],
        [("a", "f", "1"), ("b", "g", "2")],
    ),
    "every call has index 0": ([part(0, "a", "f", "1"), part(0, "b", "g", "2")], [("a", "f", "1"), ("b", "g", "2")]),
    "index 0 again, and then goes on": (
        [part(0, "a", "f", "1"), part(0, "b", "f", "2"), part(0, arguments="3")],
        [("a", "f", "1"), ("b", "f", "23")],
    ),
    "the name comes with every piece": ([part(0, "a", "f", "1"), part(0, "a", "f", "2")], [("a", "f", "12")]),
    "the name comes with every piece, without id": (
        [part(0, None, "f", '{"a"'), part(0, None, "f", ":1}")],
        [(None, "f", '{"a":1}')],
    ),
    "the same function twice, whole, without id": (
        [part(0, None, "f", '{"a":1}'), part(0, None, "f", '{"a":2}')],
        [(None, "f", '{"a":1}'), (None, "f", '{"a":2}')],
    ),
    "another name at the same index, without id": (
        [part(0, None, "f", "1"), part(0, None, "g", "2")],
        [(None, "f", "1"), (None, "g", "2")],
    ),
    "a new id with every piece": (
        [part(0, "a", "f", "1"), part(0, "b", arguments="2"), part(0, "c", arguments="3")],
        [("a", "f", "123")],
    ),
    "no index, no id": (
        [part(None, None, "f", "1"), part(arguments="2"), part(None, None, "f", "3")],
        [(None, "f", "12"), (None, "f", "3")],
    ),
    "the id comes before the name": (
        [part(0, "a"), part(0, None, "f", "1"), part(0, arguments="2")],
        [("a", "f", "12")],
    ),
    "the name comes before the id": ([part(0, None, "f", ""), part(0, "a", arguments="1")], [("a", "f", "1")]),
    "a new id without name and index": (
        [part(None, "a", "f", "1"), part(None, "b", arguments="2")],
        [("a", "f", "1"), ("b", None, "2")],
    ),
    "arguments at an index that never began": (
        [part(0, "a", "f", "1"), part(1, arguments="2")],
        [("a", "f", "1"), (None, None, "2")],
    ),
    "an empty id says nothing": ([part(0, "a", "f", "1"), part(0, "", arguments="2")], [("a", "f", "12")]),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_are_never_merged_and_names_never_joined(name: str) -> None:
    fragments, expected = CASES[name]
    assert told(calls(*fragments)) == expected


def test_arguments_that_are_no_text() -> None:
    whole = {"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}}
    assert told(calls(whole)) == [("a", "f", '{"x":1}')]
    assert told(calls({"index": 0, "id": "a", "function": {"name": "f", "arguments": None}})) == [("a", "f", "")]


def test_fields_of_a_call_that_we_do_not_know_are_kept() -> None:
    assert calls({**part(0, "a", "f", ""), "extra_content": {"s": 1}}, part(0, arguments="1"))[0]["extra_content"] == {
        "s": 1
    }


@given(
    st.lists(st.tuples(st.sampled_from("fgh"), st.text(max_size=12)), min_size=1, max_size=4),
    st.data(),
    st.sampled_from(["index and id", "index", "id"]),
)
def test_any_interleaving_gives_every_call_back(wanted: list[tuple[str, str]], data: st.DataObject, keys: str) -> None:
    queues: list[list[Json]] = []
    for number, (name, arguments) in enumerate(wanted):
        index = number if "index" in keys else None
        id_ = f"call_{number}" if "id" in keys else None
        cuts = sorted({0, len(arguments), *data.draw(st.lists(st.integers(0, len(arguments)), max_size=3))})
        pieces = [arguments[a:b] for a, b in pairwise(cuts)]
        later_id = id_ if index is None else None
        queues.append([part(index, id_, name, ""), *(part(index, later_id, arguments=piece) for piece in pieces)])
    order = data.draw(st.permutations([n for n, queue in enumerate(queues) for _ in queue]))
    found = calls(*(queues[n].pop(0) for n in order))
    assert sorted((call[1], call[2]) for call in told(found)) == sorted((name, arguments) for name, arguments in wanted)


@given(st.lists(st.text(max_size=5), min_size=1, max_size=10))
def test_the_text_is_the_sum_of_its_pieces(pieces: list[str]) -> None:
    found = assemble(*(delta(content=piece) for piece in pieces))
    assert found["choices"][0]["message"]["content"] == "".join(pieces)  # type: ignore[index]
