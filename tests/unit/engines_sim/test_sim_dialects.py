import pytest

from engines.sim.dialects import (
    DIALECTS,
    KINDS,
    Frames,
    Refused,
    Told,
    error_body,
    status_of,
    stream_error,
    timings,
    usage,
)

TOLD = Told(prompt_tokens=32, completion_tokens=3, cached_tokens=16, prompt_seconds=0.5, answer_seconds=0.1)


def frames(dialect, *, chat=True):
    return Frames(DIALECTS[dialect], chat=chat, number=1, created=5, model="m")


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("vllm", {"error": {"message": "no", "type": "BadRequestError", "param": "n", "code": 400}}),
        ("tgi", {"error": "no", "error_type": "validation"}),
        ("trtllm", {"object": "error", "message": "no", "type": "BadRequestError", "param": "n", "code": 400}),
        ("llamacpp", {"error": {"code": 400, "message": "no", "type": "invalid_request_error"}}),
    ],
)
def test_each_engine_has_its_own_error(dialect, body):
    assert error_body(DIALECTS[dialect], Refused("invalid", "no", param="n")) == body


def test_trtllm_has_a_second_shape_for_schema_errors():
    assert error_body(DIALECTS["trtllm"], Refused("schema", "body.x: no")) == {"error": "body.x: no"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_every_kind_has_a_status_and_a_body(kind, dialect):
    refused = Refused(kind, "why")
    assert 400 <= status_of(dialect, refused) < 600
    assert "why" in str(error_body(dialect, refused))


@pytest.mark.parametrize(("dialect", "status"), [("vllm", 503), ("tgi", 429), ("trtllm", 503), ("llamacpp", 503)])
def test_overload(dialect, status):
    assert status_of(DIALECTS[dialect], Refused("overloaded", "busy")) == status
    assert status_of(DIALECTS[dialect], Refused("overloaded", "busy", status=418)) == 418


def test_tgi_calls_every_stream_error_422():
    assert stream_error(DIALECTS["tgi"], "dead") == {"error": {"message": "dead", "http_status_code": 422}}
    assert stream_error(DIALECTS["vllm"], "dead")["error"]["code"] == 500


def test_usage_tells_cached_tokens_except_in_tgi():
    assert usage(DIALECTS["vllm"], TOLD) == {
        "prompt_tokens": 32,
        "total_tokens": 35,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    assert "prompt_tokens_details" not in usage(DIALECTS["tgi"], TOLD)


def test_timings_are_llama_cpp_s_own():
    told = timings(TOLD)
    assert told["cache_n"] == 16
    assert told["prompt_n"] == 16
    assert told["prompt_ms"] == pytest.approx(500)
    assert told["prompt_per_second"] == pytest.approx(32)
    assert told["predicted_n"] == 3
    assert told["predicted_per_second"] == pytest.approx(30)


def test_timings_of_nothing_are_finite():
    assert timings(Told(5, 0, 5))["prompt_per_second"] == 0


def test_the_chunks_of_each_engine():
    vllm = frames("vllm").chunk(0, {"content": "a"}, "stop")
    assert vllm["choices"] == [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop", "logprobs": None}]
    assert vllm["object"] == "chat.completion.chunk"
    assert frames("tgi").chunk(0, {"content": "a"})["choices"][0]["delta"] == {"role": "assistant", "content": "a"}
    assert "logprobs" not in frames("llamacpp").chunk(0, {})["choices"][0]


def test_a_completion_chunk_has_text():
    chunk = frames("vllm", chat=False).chunk(1, {"content": "a"})
    assert chunk["object"] == "text_completion"
    assert chunk["choices"] == [{"index": 1, "text": "a", "logprobs": None, "finish_reason": None}]


def test_progress_as_a_real_server_sends_it():
    chunk = frames("llamacpp").progress(total=32, cached=0, processed=16, milliseconds=664.4)
    assert chunk["prompt_progress"] == {"total": 32, "cache": 0, "processed": 16, "time_ms": 664}
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": None}


def test_only_llama_cpp_adds_timings():
    assert "timings" in frames("llamacpp").usage(TOLD)
    assert "timings" in frames("llamacpp").whole([], TOLD)
    assert "timings" not in frames("vllm").usage(TOLD)
    assert frames("vllm").usage(TOLD)["choices"] == []
