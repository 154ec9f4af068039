"""The sieve: what the client gets does not depend on how the bytes were cut, and the meter is told the truth."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backends import sse
from backends.errors import Interrupted
from backends.sse import Sieve, data_of, split_events, whole_events
from telemetry.usage import Meter, Usage


class Clock:
    """Time moves when a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def event(end: str = "\n", **fields: object) -> bytes:
    return f"data: {json.dumps(fields, ensure_ascii=False)}{end}{end}".encode()


def delta(**fields: object) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": None}])


ROLE = delta(role="assistant", content="")
TOKEN = delta(content="one")
FINISH = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
USAGE = event(
    choices=[], usage={"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
)
PROGRESS = event(
    choices=[{"index": 0, "delta": {"role": "assistant", "content": None}}],
    prompt_progress={"total": 10, "cache": 0, "processed": 5, "time_ms": 1},
)
DONE = b"data: [DONE]\n\n"


def run(stream: bytes, cuts: list[int], **options: object) -> tuple[bytes, Sieve, Meter]:
    """Feed the stream in pieces, then end it."""
    meter = Meter(Clock())
    sieve = Sieve(meter, **options)  # type: ignore[arg-type]
    places = sorted({0, len(stream), *(cut for cut in cuts if 0 < cut < len(stream))})
    out = b"".join(sieve.feed(stream[start:end]) for start, end in pairwise(places))
    return out + sieve.end(), sieve, meter


# --- any cut ---

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["你好", "\u2028\u2029\x85", '"usage"', "[DONE]"]
)
EVENTS = st.one_of(
    TEXTS.map(lambda text: delta(content=text)),
    TEXTS.map(lambda text: event("\r\n", choices=[{"index": 0, "delta": {"reasoning_content": text}}])),
    TEXTS.map(lambda text: event("\r", choices=[{"index": 0, "text": text}])),
    st.sampled_from(
        [
            ROLE,
            TOKEN,
            FINISH,
            USAGE,
            PROGRESS,
            DONE,
            USAGE.replace(b"\n\n", b"\r\n\r\n"),
            PROGRESS.replace(b"\n\n", b"\r\r"),
            USAGE.replace(b"\n\n", b"\n\r\n"),
            b": keep-alive\n\n",
            b"\n",
            b"\r\n",
            b'data:{"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n',
            b"data: {broken\n\n",
            b'event: message\nid: 7\ndata: {"choices":\ndata: [{"index":0,"delta":{"content":"two lines"}}]}\n\n',
            event(
                choices=[{"index": 0, "delta": {"content": "u"}}], usage={"prompt_tokens": 9, "completion_tokens": 1}
            ),
            event(choices=[{"index": 0, "delta": {}}], usage=None),
            event(error={"message": "no"}),
        ]
    ),
)


@given(st.lists(EVENTS, max_size=8).map(b"".join), st.lists(st.integers(1, 600), max_size=12), st.booleans())
@example(TOKEN + USAGE.replace(b"\n\n", b"\r\r\n"), [len(TOKEN + USAGE)], True)
@example(event("\r", text="") + event("\r\n", x=1), [len(event("\r", text="") + event("\r\n", x=1)) - 3], False)
def test_any_cut_gives_the_same(stream: bytes, cuts: list[int], strip: bool) -> None:
    options = {"strip_usage": strip, "strip_progress": strip}
    out, sieve, meter = run(stream, cuts, **options)
    bytewise, other, other_meter = run(stream, list(range(len(stream))), **options)
    assert out == bytewise
    assert (meter.usage, meter.size) == (other_meter.usage, other_meter.size)
    assert (meter.first_token_at is None) == (other_meter.first_token_at is None)
    assert (sieve.complete(), sieve.done, sieve.error, sieve.refused) == (
        other.complete(),
        other.done,
        other.error,
        other.refused,
    )
    if not strip and stream.endswith((b"\n\n", b"\r\r", b"\r\n\r\n")):
        assert out == stream


@given(st.lists(EVENTS, max_size=8).map(b"".join), st.integers(0, 600))
def test_the_first_token_is_seen_where_it_is(stream: bytes, cut: int) -> None:
    """Told in two reads, the token is noted at the read that ends its event."""
    clock = Clock()
    meter = Meter(clock)
    sieve = Sieve(meter)
    sieve.feed(stream[:cut])
    early = meter.first_token_at
    clock.now = 1.0
    sieve.feed(stream[cut:])
    whole = stream[: whole_events(stream[:cut])]
    assert (early is not None) == any(map(_speaks, split_events(whole)))


def _speaks(one: bytes) -> bool:
    try:
        choices = json.loads(data_of(one) or b"{}").get("choices", [])
    except ValueError:
        return False
    return any(
        bool(c.get("text")) or any(c.get("delta", {}).get(k) for k in ("content", "reasoning_content")) for c in choices
    )


@given(st.lists(EVENTS, max_size=6))
def test_events_are_taken_apart_without_loss(events: list[bytes]) -> None:
    stream = b"".join(events)
    end = whole_events(stream)
    assert b"".join(split_events(stream[:end])) == stream[:end]
    assert whole_events(stream[end:]) == 0


@given(st.binary(max_size=200), st.lists(st.integers(1, 200), max_size=5))
def test_any_bytes_at_all_pass(stream: bytes, cuts: list[int]) -> None:
    out, sieve, _ = run(stream, cuts)
    end = whole_events(stream)
    assert out.startswith(stream[:end])
    sieve.complete()


# --- events ---


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data:\n\n", b""),
        (b"data: a\ndata: b\r\ndata:c\r\r", b"a\nb\nc"),
        (b"id: 1\nevent: e\ndata: x\n\n", b"x"),
        (b"\xef\xbb\xbfdata: x\n\n", b"x"),
        (b": data: x\n\n", None),
        (b"database: x\n\n", None),
        (b"\n\n", None),
        ("data: a\u2028b\u2029c\x85d\x0be\n\n".encode(), "a\u2028b\u2029c\x85d\x0be".encode()),
    ],
)
def test_data_of_an_event(raw: bytes, data: bytes | None) -> None:
    assert data_of(raw) == data


@pytest.mark.parametrize(
    ("block", "end"),
    [
        (b"", 0),
        (b"a\n", 0),
        (b"a\n\n", 3),
        (b"a\r\n", 0),
        (b"a\r\n\r", 4),
        (b"a\r\n\r\n", 5),
        (b"a\r\rb", 3),
        (b"a\n\r\nb\n", 4),
    ],
)
def test_where_whole_events_end(block: bytes, end: int) -> None:
    assert whole_events(block) == end


# --- what is stripped, what is kept ---


def test_an_injected_usage_chunk_is_ours_alone() -> None:
    out, _, meter = run(ROLE + TOKEN + FINISH + USAGE + DONE, [], strip_usage=True)
    assert out == ROLE + TOKEN + FINISH + DONE
    assert meter.usage == Usage(9, 3, 4)


def test_a_usage_chunk_that_was_asked_for_passes() -> None:
    stream = ROLE + TOKEN + FINISH + USAGE + DONE
    assert run(stream, [])[0] == stream


def test_usage_on_a_chunk_with_choices_passes_and_counts() -> None:
    last = event(
        choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage={"prompt_tokens": 5, "completion_tokens": 2}
    )
    out, _, meter = run(TOKEN + last + DONE, [], strip_usage=True)
    assert out == TOKEN + last + DONE
    assert meter.usage == Usage(5, 2)


def test_continuous_usage_ends_with_the_last_count_and_keeps_the_cached_tokens() -> None:
    chunks = [
        event(
            choices=[{"index": 0, "delta": {"content": "w"}}],
            usage={"prompt_tokens": 5, "completion_tokens": n, **more},
        )
        for n, more in [
            (1, {"prompt_tokens_details": {"cached_tokens": 4}}),
            (2, {}),
            (3, {"prompt_tokens_details": None}),
        ]
    ]
    out, _, meter = run(b"".join(chunks) + FINISH + DONE, [], strip_usage=True)
    assert out == b"".join(chunks) + FINISH + DONE
    assert meter.usage == Usage(5, 3, 4)


def test_null_usage_on_each_chunk_stays_on_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [
        event(choices=[{"index": 0, "delta": {"content": "w"}, "finish_reason": None}], usage=None) for _ in range(3)
    ]
    meter = Meter(Clock())
    sieve = Sieve(meter, strip_usage=True)
    assert sieve.feed(chunks[0]) == chunks[0]
    monkeypatch.setattr(sse, "_chunk", None)  # parsing would now fail
    assert [sieve.feed(chunk) for chunk in chunks[1:]] == chunks[1:]


def test_tokens_are_not_parsed_once_the_first_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    sieve = Sieve(Meter(Clock()))
    sieve.feed(ROLE + TOKEN)
    monkeypatch.setattr(sse, "_chunk", None)
    assert sieve.feed(TOKEN) is TOKEN
    assert sieve.feed(TOKEN * 3 + TOKEN[:9]) == TOKEN * 3
    assert sieve.feed(TOKEN[9:]) == TOKEN


def test_progress_is_life_but_not_for_the_client() -> None:
    meter = Meter(Clock())
    sieve = Sieve(meter, strip_progress=True)
    assert sieve.feed(PROGRESS) == b""
    assert (meter.chunks, meter.size, meter.first_token_at, sieve.spoken) == (1, len(PROGRESS), None, False)
    assert sieve.feed(PROGRESS + ROLE) == ROLE
    assert sieve.spoken
    assert run(PROGRESS + TOKEN, [])[0] == PROGRESS + TOKEN, "it passes where the client asked for it"


def test_progress_that_carries_a_token_passes() -> None:
    both = event(choices=[{"index": 0, "delta": {"content": "x"}}], prompt_progress={"total": 1})
    assert run(both, [], strip_progress=True)[0] == both


def test_words_that_look_like_markers_are_only_words() -> None:
    said = [
        delta(content=text)
        for text in ('say "usage"', "prompt_progress", "[DONE]", '{"error": 1}', '"finish_reason":"x"')
    ]
    out, sieve, meter = run(TOKEN + b"".join(said), [], strip_usage=True, strip_progress=True)
    assert out == TOKEN + b"".join(said)
    assert not sieve.complete()
    assert (sieve.error, meter.usage) == (None, None)


def test_a_malformed_event_among_good_ones_passes() -> None:
    bad = b"data: {not json\n\n"
    out, sieve, _ = run(bad + TOKEN + bad + b'data: {"error" oops\n\n' + FINISH + DONE, [])
    assert out == bad + TOKEN + bad + b'data: {"error" oops\n\n' + FINISH + DONE
    assert sieve.malformed == 2, "one before the first token, one that looked like an error"
    assert sieve.complete()


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": None},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": []}}]},
    ],
)
def test_odd_chunks_hold_no_token_and_pass(fields: dict[str, object]) -> None:
    out, _, meter = run(event(**fields), [], strip_usage=True)
    assert out == event(**fields)
    assert meter.first_token_at is None


# --- the first token, the last one ---


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "x"},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"function_call": {"name": "f"}},
    ],
)
def test_what_counts_as_a_token(fields: dict[str, object]) -> None:
    clock = Clock()
    meter = Meter(clock)
    sieve = Sieve(meter)
    for silent in (
        ROLE,
        delta(content=None),
        delta(tool_calls=[]),
        b": ping\n\n",
        event(choices=[{"index": 0, "text": ""}]),
    ):
        clock.now += 1
        sieve.feed(silent)
    assert meter.first_token_at is None
    clock.now = 9.0
    sieve.feed(delta(**fields))
    assert meter.first_token_at == 9.0


def test_neither_comments_nor_the_end_move_the_last_token() -> None:
    clock = Clock()
    meter = Meter(clock)
    sieve = Sieve(meter)
    for chunk in (TOKEN, TOKEN, b": ping\n\n", FINISH, USAGE, DONE):
        clock.now += 1
        sieve.feed(chunk)
    assert (meter.first_token_at, meter.last_token_at, meter.chunks) == (1.0, 2.0, 6)
    assert meter.time_per_output_token == 0.5, "one second for the two tokens after the first of three"


# --- the end ---


@pytest.mark.parametrize(
    ("stream", "complete"),
    [
        (TOKEN, False),
        (TOKEN + DONE, True),
        (TOKEN + FINISH, True),
        (TOKEN + FINISH + USAGE, True),
        (TOKEN + FINISH.replace(b'"finish_reason": "', b'"finish_reason"  :\t"'), True),
        (TOKEN + b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n', True),
        (TOKEN + b'event: response.completed\ndata: {"type": "response.completed"}\n\n', True),
        (TOKEN + b"data: [DONE]", True),
        (TOKEN + b"data: [DONE]\n", True),
        (TOKEN + b"data: [DON", False),
        (b"", False),
    ],
)
def test_when_a_stream_is_complete(stream: bytes, complete: bool) -> None:
    _, sieve, meter = run(stream, [])
    assert sieve.complete() is complete
    assert meter.finished is complete


def test_every_choice_must_finish() -> None:
    ends = [event(choices=[{"index": n, "delta": {}, "finish_reason": "stop"}]) for n in range(2)]
    assert not run(TOKEN + ends[0] + ends[0], [], choices=2)[1].complete()
    assert run(TOKEN + ends[0] + ends[1], [], choices=2)[1].complete()


def test_the_tail_is_completed_if_it_is_whole_and_dropped_if_it_is_not() -> None:
    assert run(TOKEN + FINISH[:-2], [])[0] == TOKEN + FINISH
    assert run(TOKEN + FINISH[:-1], [])[0] == TOKEN + FINISH
    assert run(TOKEN + FINISH[:-9], [])[0] == TOKEN
    assert run(TOKEN + USAGE[:-2], [], strip_usage=True)[0] == TOKEN
    assert run(TOKEN + b": bye", [])[0] == TOKEN + b": bye\n\n"


# --- errors in the stream ---


@pytest.mark.parametrize(
    "data",
    [
        b'{"error":{"message":"no","code":500}}',
        b'{"error":"no","error_type":"generation"}',
        b'{"object":"error","message":"no","code":400}',
    ],
)
def test_an_error_in_place_of_an_answer_is_told_apart(data: bytes) -> None:
    first = b"data: " + data + b"\n\n"
    assert run(b": ping\n\n" + first + DONE, [])[1].refused == data
    out, sieve, _ = run(TOKEN + first + DONE, [])
    assert (out, sieve.refused, sieve.error) == (TOKEN + first + DONE, None, data)


def test_errors_by_name_of_the_field_or_event() -> None:
    assert run(b'error: {"message":"old llama.cpp"}\n\n', [])[1].refused == b'{"message":"old llama.cpp"}'
    assert run(b'event: error\ndata: {"message":"x"}\n\n', [])[1].refused == b'{"message":"x"}'


def test_an_event_without_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_LIMIT", 1000)
    sieve = Sieve(Meter(Clock()))
    sieve.feed(b"data: " + b"x" * 900)
    with pytest.raises(Interrupted, match="1000 bytes"):
        sieve.feed(b"x" * 200)
