"""Errors in the shapes that model servers give them, told in one."""

import json
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import Overloaded, Refused
from backends.refusals import Words, read_words, refusal, refusal_in_stream, retry_after

NOW = 1_700_000_000.0


def refused(status: int, body: object, **headers: str) -> Refused:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    error = refusal(status, raw, headers, server="r1", now=NOW)
    assert isinstance(error, Refused)
    return error


SHAPES = {
    "openai": (
        {"error": {"message": "no", "type": "invalid_request_error", "param": "top_p", "code": "bad_value"}},
        ("no", "invalid_request_error", "bad_value", "top_p"),
    ),
    "llama.cpp": ({"error": {"code": 501, "message": "no embeddings", "type": "not_supported_error"}}, ("no embeddings", "not_supported_error", None, None)),
    "vllm": ({"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}, ("no", "BadRequestError", None, None)),
    "vllm before, trtllm": ({"object": "error", "message": "no", "type": "BadRequestError", "param": None, "code": 400}, ("no", "BadRequestError", None, None)),
    "trtllm schema": ({"error": "1 validation error: metadata"}, ("1 validation error: metadata", None, None, None)),
    "tgi": ({"error": "Input validation error: `temperature` must be strictly positive", "error_type": "validation"},
            ("Input validation error: `temperature` must be strictly positive", "invalid_request_error", "validation", None)),
    "tgi tool": ({"error": "Tool error: x", "error_type": "tool_error"}, ("Tool error: x", "invalid_request_error", "tool_error", None)),
    "fastapi text": ({"detail": "Not Found"}, ("Not Found", None, None, None)),
    "fastapi faults": (
        {"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "field required", "type": "missing"}, {"loc": [], "msg": "bad"}]},
        ("messages.0.role: field required; bad", "invalid_request_error", None, "messages.0.role"),
    ),
    "fastapi object": ({"detail": {"error": {"message": "deep"}}}, ("deep", None, None, None)),
    "json text": ("just words", ("just words", None, None, None)),
    "numbers as text": ({"error": {"message": "no", "code": "400"}}, ("no", None, None, None)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    body, expected = SHAPES[name]
    error = refused(418, body)
    assert (str(error), error.type, error.code, error.param) == expected
    assert error.status == 418
    assert not error.retryable


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"Failed to deserialize the JSON body", "Failed to deserialize the JSON body"),
        (
            b"<html><head><title>502</title></head><body><h1>Bad  Gateway</h1>\n<p>nginx</p></body></html>",
            "Bad Gateway nginx",
        ),
        (b"", "The model server answered with status 500."),
        (b"  \n", "The model server answered with status 500."),
        (b"{}", "The model server answered with status 500."),
        (b"{\xff", "{�"),
        (b"[1]", "[1]"),
        (b'{"error":{"message":""}}', "The model server answered with status 500."),
        (b"x" * 5000, "x" * 2000),
    ],
)
def test_bodies_that_are_no_json_object_of_ours(body: bytes, message: str) -> None:
    assert str(refused(500, body)) == message


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"code": 400, "message": "the request exceeds the available context size", "type": "exceed_context_size_error", "n_ctx": 512}}),
        (400, {"error": {"message": "This model's maximum context length is 8192 tokens. However, you requested 9000", "type": "BadRequestError", "code": 400}}),
        (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens", "error_type": "validation"}),
        (422, {"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000", "error_type": "validation"}),
        (400, {"object": "error", "message": "The sum of prompt length (9000) and max_tokens should not exceed max_seq_len (8192)", "type": "BadRequestError", "code": 400}),
        (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
    ],
)  # fmt: skip
def test_a_prompt_that_is_too_long_has_one_code(status: int, body: object) -> None:
    error = refused(status, body)
    assert (error.status, error.code, error.type) == (400, "context_length_exceeded", "invalid_request_error")


def test_a_servers_own_trouble_is_not_a_long_prompt() -> None:
    assert refused(500, {"error": {"message": "context length tensor missing"}}).code is None


@pytest.mark.parametrize("status", [429, 503])
def test_busy_servers(status: int) -> None:
    error = refusal(
        status, b'{"error":"Model is overloaded","error_type":"overloaded"}', {"retry-after": "7"}, server="r1", now=NOW
    )
    assert isinstance(error, Overloaded)
    assert (error.status, error.retry_after, error.retryable) == (status, 7.0, True)
    assert "Model is overloaded" in str(error)


@pytest.mark.parametrize("status", [401, 407])
def test_the_gateways_own_key_is_not_the_clients(status: int) -> None:
    error = refused(status, {"error": {"message": "Invalid API Key", "type": "authentication_error"}})
    assert (error.status, error.code, error.type) == (502, "upstream_unauthorized", "server_error")
    assert "gateway's credentials" in str(error)


def test_a_redirect_is_not_an_answer() -> None:
    assert refused(307, b"").status == 502


def test_errors_in_a_stream() -> None:
    tgi = refusal_in_stream(b'{"error":{"message":"bad grammar","http_status_code":422}}', server="r1")
    assert isinstance(tgi, Refused)
    assert (tgi.status, str(tgi)) == (422, "bad grammar")
    vllm = refusal_in_stream(b'{"object":"error","message":"dead","code":500}', server="r1")
    assert isinstance(vllm, Refused)
    assert vllm.status == 500
    assert isinstance(refusal_in_stream(b'{"error":{"message":"busy","code":503}}', server="r1"), Overloaded)
    unknown = refusal_in_stream(b"{}", server="r1")
    assert isinstance(unknown, Refused)
    assert unknown.status == 500


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("5", 5.0),
        (" 5 ", 5.0),
        ("0.5", 0.5),
        ("86400", 60.0),
        ("-3", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", 60.0),
        (formatdate(NOW + 30, usegmt=True), 30.0),
        (formatdate(NOW - 30, usegmt=True), 0.0),
        (formatdate(NOW + 86400, usegmt=True), 60.0),
        ("Wed, 99 Foo 2023", None),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    assert retry_after(text, now=NOW) == seconds


@given(st.binary(max_size=300))
def test_any_body_can_be_read(body: bytes) -> None:
    words = read_words(body)
    assert words is None or isinstance(words, Words)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "detail", "message", "code", "type", "loc", "msg", "param"]), inner, max_size=4
        )
    ),
)


@given(JSON, st.integers(300, 599))
def test_any_json_gives_an_error_with_a_message(value: object, status: int) -> None:
    error = refusal(status, json.dumps(value).encode(), {}, server="r1", now=NOW)
    assert str(error)
