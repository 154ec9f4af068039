import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serve.body import Body
from gateway.serve.errors import BadRequest

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def chat(**more) -> bytes:
    return json.dumps({"model": "small", "messages": [{"role": "user", "content": "hi"}], **more}).encode()


def refused(raw: bytes, operation="chat") -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        Body.parse(raw, operation)
    return caught.value


def test_what_the_gateway_needs_is_read():
    body = Body.parse(
        chat(stream=True, stream_options={"include_usage": True}, max_tokens=12, n=3, unknown={"a": [1]}), "chat"
    )
    assert (body.model, body.stream, body.wants_usage, body.max_tokens, body.n) == ("small", True, True, 12, 3)
    assert bytes(body.fields["unknown"]) == b'{"a": [1]}'


def test_what_is_left_out_has_a_meaning():
    body = Body.parse(chat(), "chat")
    assert (body.stream, body.wants_usage, body.max_tokens, body.n) == (False, False, None, 1)


@pytest.mark.parametrize(
    ("raw", "param", "says"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b"[1]", None, "must be a JSON object"),
        (b'"text"', None, "must be a JSON object"),
        (b"null", None, "must be a JSON object"),
        (b'{"model": "m"} {}', None, "not valid JSON"),
        (b'{"messages": []}', "model", "missing"),
        (b'{"model": null, "messages": []}', "model", "string"),
        (b'{"model": 7, "messages": []}', "model", "string"),
        (b'{"model": "", "messages": []}', "model", "empty"),
        (b'{"model": "m"}', "messages", "missing"),
        (b'{"model": "m", "messages": null}', "messages", "array"),
        (b'{"model": "m", "messages": "hi"}', "messages", "array"),
        (b'{"model": "m", "messages": {}}', "messages", "array"),
        (b'{"model": "m", "messages": [], "stream": 1}', "stream", "true or false"),
        (b'{"model": "m", "messages": [], "stream": "true"}', "stream", "true or false"),
        (b'{"model": "m", "messages": [], "stream": []}', "stream", "true or false"),
        (b'{"model": "m", "messages": [1 2]}', None, "not valid JSON"),
        (b'{"model": "m", "messages": [], "x": 01}', None, "not valid JSON"),
        (b'{"model": "m", "messages": [], "x": NaN}', None, "not valid JSON"),
        (b'{"model": "m", "messages": [], "x": "\xff"}', None, "UTF-8"),
        (b'{"model": "m", "messages": ["\xe4\xbd"]}', None, "UTF-8"),
        (b"\xff\xfe{\x00}\x00", None, "UTF-8"),
    ],
)
def test_what_cannot_be_understood_is_refused_by_name(raw, param, says):
    error = refused(raw)
    assert error.param == param
    assert says in str(error)
    assert error.status == 400


@pytest.mark.parametrize(("operation", "field"), [("completions", "prompt"), ("embeddings", "input")])
def test_every_operation_has_its_prompt(operation, field):
    assert refused(b'{"model": "m", "messages": []}', operation).param == field
    for prompt in (b'"text"', b'["a", "b"]', b"[1, 2, 3]", b"[[1], [2]]"):
        body = Body.parse(b'{"model": "m", "%s": %s}' % (field.encode(), prompt), operation)
        assert body.prompt_text == prompt


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "assistant", "content": ""},
        {"role": "assistant"},
        {"role": "never heard of", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "system", "content": "late"},
        {},
        7,
    ],
)
def test_messages_are_the_model_servers_to_judge(message):
    raw = chat(messages=[{"role": "system", "content": "s"}, message, {"role": "system", "content": "s"}])
    body = Body.parse(raw, "chat")
    assert json.loads(body.prompt_text)[1] == message
    assert json.loads(body.rewritten(model="x"))["messages"][1] == message


def test_null_means_no_stream():
    assert Body.parse(chat(stream=None), "chat").stream is False


@pytest.mark.parametrize(
    "options", [None, {}, {"include_usage": False}, {"include_usage": None}, 7, "x", [], {"include_usage": 1}]
)
def test_usage_is_wanted_only_where_it_says_so(options):
    assert Body.parse(chat(stream=True, stream_options=options), "chat").wants_usage is False


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7, "max_tokens": 5, "n_predict": 3}, 7),
        ({"max_completion_tokens": None, "max_tokens": 5}, 5),
        ({"n_predict": 3}, 3),
        ({"n_predict": -1}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": 5.5}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": 10**40}, None),
    ],
)
def test_the_first_limit_that_is_a_number_counts(fields, expected):
    assert Body.parse(chat(**fields), "chat").max_tokens == expected


def test_a_key_that_comes_twice_counts_as_its_last_value():
    body = Body.parse(b'{"model":"a","messages":[1],"model":"b","messages":[2],"stream":true,"stream":false}', "chat")
    assert (body.model, body.prompt_text, body.stream) == ("b", b"[2]", False)
    assert json.loads(body.rewritten(x=1)) == {"model": "b", "messages": [2], "stream": False, "x": 1}


@pytest.mark.parametrize(
    "deep", [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"[" * 100_000]
)
def test_deep_nesting_is_refused_and_harms_nobody(deep):
    assert refused(b'{"model":"m","messages":[],"x":%s}' % deep).status == 400
    assert Body.parse(chat(), "chat").model == "small"


def test_nesting_that_is_usual_passes():
    raw = b'{"model":"m","messages":[],"x":%s}' % (b"[" * 100 + b"]" * 100)
    assert Body.parse(raw, "chat").rewritten() == raw


def test_huge_numbers_pass_as_they_are():
    raw = b'{"model":"m","messages":[],"max_tokens":%s,"n":1e999999,"x":%s}' % (b"9" * 100_000, b"9" * 100_000)
    body = Body.parse(raw, "chat")
    assert (body.max_tokens, body.n) == (None, 1)
    assert body.rewritten() == raw


def test_one_line_of_a_megabyte_passes():
    raw = chat(messages=[{"role": "user", "content": "x" * 1_000_000}])
    assert len(Body.parse(raw, "chat").prompt_text) > 1_000_000


def test_rewriting_keeps_every_other_byte():
    raw = b'{"z": 1.50, "model" : "a",  "messages": [ {"role":"user", "content":"\\u00e9\\/ \xc3\xa9"} ], "a": 1E5, "seed": 12345678901234567890}'
    body = Body.parse(raw, "chat")
    assert body.rewritten(model="b", added=msgspec.Raw(b"[1,  2]")) == (
        b'{"z":1.50,"model":"b","messages":[ {"role":"user", "content":"\\u00e9\\/ \xc3\xa9"} ],"a":1E5,"seed":12345678901234567890,"added":[1,  2]}'
    )


@given(st.dictionaries(st.text(), values, max_size=6), values)
def test_rewriting_one_field_leaves_the_others(more, new):
    before = json.loads(chat(**more)) | {"model": "small", "messages": []}
    raw = json.dumps(before, ensure_ascii=False).encode("utf-8", "replace")
    body = Body.parse(raw, "chat")
    after = json.loads(body.rewritten(changed=new))
    expected = json.loads(raw) | {"changed": json.loads(json.dumps(new).encode())}
    assert after == expected
    assert list(after) == list(expected)
    for name, value in body.fields.items():
        if name != "changed":
            assert bytes(Body.parse(body.rewritten(changed=new), "chat").fields[name]) == bytes(value)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_give_a_body_or_a_refusal(raw):
    try:
        body = Body.parse(raw, "chat")
    except BadRequest:
        return
    assert body.model


def test_the_text_of_a_prompt_begins_with_its_tools():
    body = Body.parse(b'{"messages":[1 , 2],"tools":[{"name": "f"}],"model":"m"}', "chat")
    assert body.prompt_text == b'[{"name": "f"}][1 , 2]'
    assert body.with_messages(b"[3]") == b'[{"name": "f"}][3]'
    assert Body.parse(b'{"messages":[1 , 2],"model":"m"}', "chat").prompt_text == b"[1 , 2]"


def test_a_server_gets_its_own_model_name_and_the_chosen_form():
    body = Body.parse(b'{"messages":[1 , 2],"model":"m","top_p":0.90}', "chat")
    assert body.shaped(model="served") == b'{"messages":[1 , 2],"model":"served","top_p":0.90}'
    assert body.shaped(model="served", text=b"[3]") == b'{"messages":[3],"model":"served","top_p":0.90}'


def test_the_prompt_is_never_printed():
    body = Body.parse(chat(messages=[{"role": "user", "content": "my secret"}]), "chat")
    assert "secret" not in repr(body)
    assert "small" in repr(body)
