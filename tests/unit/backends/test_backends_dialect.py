"""What a request becomes on its way to a server: as little as may be, and not a byte of the rest."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import llamacpp, tgi, trtllm, vllm
from backends.dialect import OPENAI, Dialect, prepare
from backends.registry import OURS, create, factories
from backends.types import PATHS, Call, Operation
from backends.wire import WireUpstream

DIALECTS = (OPENAI, llamacpp.DIALECT, vllm.DIALECT, tgi.DIALECT, trtllm.DIALECT)
BODY = (
    b'{"model": "m", "messages": [ {"role":"user","content":null} ], "temperature": 1.50, "metadata": {"\\u00e9": 1e2}}'
)


def call(body: bytes = BODY, operation: Operation = "chat", **fields: bool) -> Call:
    return Call(operation, body, **fields)


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if not d.streams_always], ids=lambda d: d.name)
def test_what_is_not_streamed_goes_as_it_came(dialect: Dialect) -> None:
    assert prepare(call(), dialect).body is BODY
    assert not prepare(call(), dialect).streams


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_embeddings_go_as_they_came(dialect: Dialect) -> None:
    prepared = prepare(call(b'{"input":"x"}', "embeddings"), dialect)
    assert (prepared.body, prepared.streams) == (b'{"input":"x"}', False)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_a_stream_asks_for_its_usage_and_leaves_the_rest(dialect: Dialect) -> None:
    prepared = prepare(call(stream=True), dialect)
    assert prepared.streams
    assert prepared.strip_usage
    for value in (b'[ {"role":"user","content":null} ]', b"1.50", b'{"\\u00e9": 1e2}'):
        assert value in prepared.body
    sent = json.loads(prepared.body)
    assert list(sent)[:4] == ["model", "messages", "temperature", "metadata"]
    assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_usage_that_the_client_wants_is_not_stripped(dialect: Dialect) -> None:
    body = b'{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}'
    prepared = prepare(call(body, stream=True, wants_usage=True), dialect)
    assert not prepared.strip_usage
    assert json.loads(prepared.body)["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize("options", [b"null", b"{}", b'{"include_usage": false}', b'"nonsense"', b"[1]"])
def test_stream_options_of_any_kind_are_merged(options: bytes) -> None:
    body = b'{"stream":true,"stream_options":' + options + b"}"
    assert json.loads(prepare(call(body, stream=True), OPENAI).body)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("n", "choices"), [(b"2", 2), (b"1", 1), (b"null", 1), (b'"2"', 1), (b"2.0", 1), (b"99999", 1)]
)
def test_how_many_choices_must_finish(n: bytes, choices: int) -> None:
    assert prepare(call(b'{"n":' + n + b"}", stream=True), OPENAI).choices == choices


def test_a_body_that_is_no_object() -> None:
    with pytest.raises(msgspec.MsgspecError):
        prepare(call(b"[1]", stream=True), OPENAI)


FIELDS = st.dictionaries(
    st.text(max_size=6).filter(lambda name: name not in ("stream", "stream_options", "n")),
    st.sampled_from([b"1.0", b'"\\u4f60"', b"null", b"[ 1,\t2 ]", b'{"b":1, "a":2}', b"1e400", '"é"'.encode()]),
    max_size=6,
)  # fmt: skip


@given(FIELDS)
def test_fields_we_do_not_touch_stay_byte_for_byte(fields: dict[str, bytes]) -> None:
    body = b"{" + b" , ".join(msgspec.json.encode(name) + b" : " + value for name, value in fields.items()) + b"}"
    sent = msgspec.json.decode(prepare(call(body, stream=True), OPENAI).body, type=dict[str, msgspec.Raw])
    assert {name: bytes(value) for name, value in sent.items() if name in fields} == fields
    assert set(sent) - set(fields) == {"stream", "stream_options"}


# --- llama.cpp ---


def test_llamacpp_is_always_streamed_and_bounded() -> None:
    for operation in ("chat", "completions"):
        prepared = prepare(call(b'{"model":"m"}', operation), llamacpp.DIALECT)  # type: ignore[arg-type]
        sent = json.loads(prepared.body)
        assert (sent["stream"], sent["return_progress"], sent["max_tokens"]) == (
            True,
            True,
            llamacpp.DEFAULT_MAX_TOKENS,
        )
        assert (prepared.streams, prepared.strip_progress, prepared.strip_usage) == (True, True, False)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_llamacpp_leaves_a_limit_alone(name: str) -> None:
    sent = json.loads(prepare(call(f'{{"{name}":5}}'.encode()), llamacpp.DIALECT).body)
    assert {key: sent[key] for key in sent if "max" in key or "predict" in key} == {name: 5}


def test_llamacpp_a_null_limit_is_none() -> None:
    sent = json.loads(prepare(call(b'{"max_tokens":null}'), llamacpp.DIALECT).body)
    assert sent["max_tokens"] == llamacpp.DEFAULT_MAX_TOKENS


def test_llamacpp_progress_that_was_asked_for_stays() -> None:
    prepared = prepare(call(b'{"return_progress":true}', stream=True), llamacpp.DIALECT)
    assert not prepared.strip_progress
    assert json.loads(prepared.body)["return_progress"] is True


def test_llamacpp_progress_that_was_refused_is_asked_for_all_the_same() -> None:
    """The server would not notice that a client has left; the client sees none of it."""
    prepared = prepare(call(b'{"return_progress":false}', stream=True), llamacpp.DIALECT)
    assert prepared.strip_progress
    assert json.loads(prepared.body)["return_progress"] is True


# --- the others ---


def test_trtllm_never_reads_the_queue_that_empties() -> None:
    assert trtllm.DIALECT.metrics == "/prometheus/metrics"
    assert '"/metrics"' not in Path(trtllm.__file__).read_text().replace("`", "")


def test_registry() -> None:
    backends = create(WireUpstream())
    assert set(backends) >= {"openai", "llamacpp", "vllm", "tgi", "trtllm"} == set(OURS)
    assert set(PATHS) == {"chat", "completions", "embeddings"}


def test_a_plugin_adds_a_name_and_replaces_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        def __init__(self, name: str) -> None:
            self.name = name

        def load(self) -> str:
            return f"theirs {self.name}"

    monkeypatch.setattr("backends.registry.entry_points", lambda group: [Point("mine"), Point("vllm")])
    found = factories()
    assert found["mine"] == "theirs mine"  # type: ignore[comparison-overlap]
    assert found["vllm"] is OURS["vllm"]
