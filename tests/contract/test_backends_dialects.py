"""Each backend against a small fake of its server: what is sent, what comes back, and what is told when it goes wrong."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from email.utils import formatdate

import pytest

from backends.errors import BackendError, Broken, Interrupted, Overloaded, Refused, TimedOut, Unreachable
from backends.openai_http import OpenAIHttp
from backends.registry import create
from backends.types import Access, Backend, Call, Load, Replica, ReplicaId
from backends.wire import WireUpstream
from telemetry.usage import Meter, Usage
from tests.support.raw_server import (
    LAST_CHUNK,
    STREAM_HEAD,
    Peer,
    RawServer,
    Request,
    Script,
    answer,
    chunk,
    raw_server,
)
from tests.support.wire import settles

NAMES = ["openai", "llamacpp", "vllm", "tgi", "trtllm"]
CHAT = b'{"model":"served","messages":[{"role":"user","content":"hi"}],"seed":1.0}'


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps({"id": "c1", "object": "chat.completion.chunk", **fields}).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: object) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])


ROLE = delta(role="assistant", content=None)
TOKENS = [delta(content="Hel"), delta(content="lo")]
FINISH = delta("stop")
USAGE = event(
    choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
)
PROGRESS = event(
    choices=[{"index": 0, "delta": {"role": "assistant", "content": None}}],
    prompt_progress={"total": 9, "processed": 4},
)
DONE = b"data: [DONE]\n\n"
ANSWER = [ROLE, *TOKENS, FINISH]


class Fake:
    """A model server: routes to answers; remembers what it was asked."""

    def __init__(self, *events: bytes, gap: float = 0.0, then: bytes = LAST_CHUNK) -> None:
        self.events = events
        self.gap = gap
        self.then = then
        self.asked: list[Request] = []
        self.gets: dict[str, bytes] = {}
        self.post: bytes | None = None  # answers every POST with this instead

    @property
    def body(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.asked[-1].body)
        return found

    async def __call__(self, peer: Peer) -> None:
        while request := await peer.request():
            self.asked.append(request)
            method, path, _ = request.line.split(" ")
            if method == "GET":
                await peer.send(self.gets.get(path, answer(b'{"detail":"Not Found"}', status="404 Not Found")))
            elif self.post is not None:
                await peer.send(self.post)
            else:
                await self.stream(peer)
                if not self.then or request.headers.get("connection") == "close":
                    return

    async def stream(self, peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        for one in self.events:
            await asyncio.sleep(self.gap)
            await peer.send(chunk(one))
        await peer.send(self.then)


class World:
    def __init__(self) -> None:
        self.upstream = WireUpstream(connect_timeout=1.0)
        self.backends = create(self.upstream)
        self.meter = Meter(time.monotonic)

    async def ask(
        self, name: str, script: Script, body: bytes = CHAT, **fields: object
    ) -> tuple[dict[str, str], bytes]:
        async with raw_server(script) as server:
            return await self.send(self.backends[name], server, body, **fields)

    async def send(
        self, backend: Backend, server: RawServer, body: bytes = CHAT, **fields: object
    ) -> tuple[dict[str, str], bytes]:
        call = Call(**{"operation": "chat", "body": body, "first_byte_timeout": 2, "idle_timeout": 2, **fields})  # type: ignore[arg-type]
        async with backend.send(replica(server), call, self.meter) as reply:
            return dict(reply.headers), b"".join([piece async for piece in reply.body])


def replica(server: RawServer, key: str | None = None) -> Replica:
    return Replica(ReplicaId("r1"), server.url, "served", access=Access(key=key))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    assert made.upstream.stats().in_use == 0
    await made.upstream.aclose()


# --- answers ---


@pytest.mark.parametrize("name", NAMES)
async def test_a_stream(world: World, name: str) -> None:
    fake = Fake(*ANSWER, USAGE, DONE)
    headers, out = await world.ask(name, fake, stream=True, headers={"traceparent": "00-a-b-01"})
    assert out == b"".join([*ANSWER, DONE])
    assert headers == {"content-type": "text/event-stream; charset=utf-8"}
    assert world.meter.usage == Usage(9, 2, 4)
    assert world.meter.finished
    assert world.meter.first_token_at is not None
    assert fake.asked[0].line == "POST /v1/chat/completions HTTP/1.1"
    assert fake.asked[0].headers["traceparent"] == "00-a-b-01"
    assert b'"seed":1.0' in fake.asked[0].body


@pytest.mark.parametrize("name", NAMES)
async def test_a_stream_whose_usage_was_asked_for(world: World, name: str) -> None:
    _, out = await world.ask(name, Fake(*ANSWER, USAGE, DONE), stream=True, wants_usage=True)
    assert out == b"".join([*ANSWER, USAGE, DONE])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "llamacpp"])
async def test_a_document_passes_byte_for_byte(world: World, name: str) -> None:
    document = b'{ "id":"1", "choices":[ {"n": 1.50} ],\n"usage":{"prompt_tokens":3,"completion_tokens":1} }'
    fake = Fake()
    fake.post = answer(document, x_request_id="up-1", set_cookie="a=b", server="x")
    headers, out = await world.ask(name, fake)
    assert out == document
    assert headers == {"content-type": "application/json", "content-length": str(len(document)), "x-request-id": "up-1"}
    assert (fake.asked[0].body, world.meter.usage, world.meter.finished) == (CHAT, Usage(3, 1), True)
    assert (world.meter.size, world.meter.first_token_at) == (len(document), None)


@pytest.mark.parametrize("name", NAMES)
async def test_embeddings_are_a_document_everywhere(world: World, name: str) -> None:
    fake = Fake()
    fake.post = answer(b'{"data":[],"usage":{"prompt_tokens":3}}')
    _, out = await world.ask(name, fake, b'{"input":"x"}', operation="embeddings")
    assert out == b'{"data":[],"usage":{"prompt_tokens":3}}'
    assert (fake.asked[0].line, fake.asked[0].body) == ("POST /v1/embeddings HTTP/1.1", b'{"input":"x"}')
    assert "connection" not in fake.asked[0].headers


async def test_the_key_goes_along(world: World) -> None:
    fake = Fake()
    fake.post = answer()
    async with (
        raw_server(fake) as server,
        world.backends["openai"].send(replica(server, "sk-up"), Call("chat", CHAT), world.meter) as reply,
    ):
        assert [piece async for piece in reply.body] == [b"{}"]
    assert fake.asked[0].headers["authorization"] == "Bearer sk-up"


@pytest.mark.parametrize("content_type", ["text/plain", ""])
async def test_a_stream_that_does_not_say_that_it_is_one(world: World, content_type: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        kind = f"content-type: {content_type}\r\n" if content_type else ""
        await peer.send(f"HTTP/1.1 200 OK\r\n{kind}\r\n".encode() + b"".join([*ANSWER, DONE]))

    headers, out = await world.ask("vllm", script, stream=True)
    assert out == b"".join([*ANSWER, DONE])
    assert headers["content-type"].startswith("text/event-stream")


async def test_a_document_where_a_stream_was_asked_for(world: World) -> None:
    fake = Fake()
    fake.post = answer(b'{"choices":[]}')
    headers, out = await world.ask("openai", fake, stream=True)
    assert (headers["content-type"], out) == ("application/json", b'{"choices":[]}')


async def test_a_stream_where_a_document_was_asked_for(world: World) -> None:
    headers, out = await world.ask("openai", Fake(*ANSWER, DONE))
    assert headers["content-type"] == "application/json"
    assert json.loads(out)["choices"][0]["message"]["content"] == "Hello"


async def test_events_arrive_as_they_come(world: World) -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD + chunk(ROLE) + chunk(TOKENS[0][:9]))
        await go_on.wait()
        await peer.send(chunk(TOKENS[0][9:]) + chunk(FINISH + DONE) + LAST_CHUNK)

    async with raw_server(script) as server:
        call = Call("chat", CHAT, stream=True)
        async with world.backends["vllm"].send(replica(server), call, world.meter) as reply:
            assert await anext(reply.body) == ROLE
            go_on.set()
            assert b"".join([piece async for piece in reply.body]) == TOKENS[0] + FINISH + DONE


# --- llama.cpp ---


async def test_llamacpp_is_streamed_and_put_together(world: World) -> None:
    timings = event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2}, timings={"cache_n": 4})
    fake = Fake(PROGRESS, PROGRESS, *ANSWER, timings, DONE)
    headers, out = await world.ask("llamacpp", fake)
    assert json.loads(out) == {
        "id": "c1",
        "object": "chat.completion",
        "timings": {"cache_n": 4},
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2},
    }
    assert headers == {"content-type": "application/json"}
    assert (fake.body["stream"], fake.body["return_progress"], fake.body["max_tokens"]) == (True, True, 1024)
    assert fake.asked[0].headers["connection"] == "close"
    assert world.meter.usage == Usage(9, 2)
    assert world.meter.first_token_at is not None, "it is known here, although the client does not stream"


async def test_llamacpp_completions_too(world: World) -> None:
    pieces = [event(object="text_completion", choices=[{"index": 0, "text": t, "finish_reason": None}]) for t in "ab"]
    last = event(object="text_completion", choices=[{"index": 0, "text": "", "finish_reason": "length"}])
    _, out = await world.ask("llamacpp", Fake(*pieces, last, DONE), b'{"prompt":"x"}', operation="completions")
    assert json.loads(out)["choices"] == [{"text": "ab", "index": 0, "finish_reason": "length"}]


async def test_llamacpp_progress_is_life_but_does_not_open_the_answer(world: World) -> None:
    """Ten pieces of progress, each within the idle timeout, all of them longer than the first-byte timeout."""
    fake = Fake(*[PROGRESS] * 10, *ANSWER, DONE, gap=0.03)
    _, out = await world.ask("llamacpp", fake, stream=True, first_byte_timeout=0.2, idle_timeout=0.2)
    assert out == b"".join([*ANSWER, DONE])


async def test_llamacpp_silence_in_the_prompt_is_told_before_the_answer(world: World) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD + chunk(PROGRESS))
        await peer.gone()

    for stream in (True, False):
        with pytest.raises(TimedOut, match="no byte came"):
            await world.ask("llamacpp", script, stream=stream, idle_timeout=0.1)


async def test_llamacpp_cut_in_the_prompt_is_told_before_the_answer(world: World) -> None:
    for stream in (True, False):
        with pytest.raises(Broken):
            await world.ask("llamacpp", Fake(PROGRESS, then=b""), stream=stream)


async def test_llamacpp_half_an_answer_is_no_document(world: World) -> None:
    with pytest.raises(BackendError):
        await world.ask("llamacpp", Fake(ROLE, *TOKENS, then=b""))
    with pytest.raises(BackendError):
        await world.ask("llamacpp", Fake(ROLE, *TOKENS))


async def test_llamacpp_an_error_in_the_middle_is_the_answers_error(world: World) -> None:
    bad = b'data: {"error":{"code":500,"message":"slot lost","type":"server_error"}}\n\n'
    with pytest.raises(Refused, match="slot lost") as caught:
        await world.ask("llamacpp", Fake(ROLE, *TOKENS, bad))
    assert caught.value.status == 500


# --- the end of a stream ---


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("then", [b"", LAST_CHUNK])
async def test_an_end_without_a_terminal_frame(world: World, name: str, then: bytes) -> None:
    got = bytearray()
    async with raw_server(Fake(ROLE, *TOKENS, then=then)) as server:
        call = Call("chat", CHAT, stream=True)
        async with world.backends[name].send(replica(server), call, world.meter) as reply:
            with pytest.raises(Interrupted) as caught:
                await _into(got, reply.body)
    assert bytes(got) == b"".join([ROLE, *TOKENS]), "every byte that came has been passed on"
    assert (caught.value.told, world.meter.finished) == (False, False)


@pytest.mark.parametrize("events", [[*ANSWER], [*ANSWER, USAGE], [*ANSWER, DONE], [ROLE, *TOKENS, DONE]])
async def test_a_cut_after_the_terminal_frame_is_no_harm(world: World, events: list[bytes]) -> None:
    for then in (b"", LAST_CHUNK):
        _, out = await world.ask("vllm", Fake(*events, then=then), stream=True, wants_usage=True)
        assert out == b"".join(events)


async def test_half_an_event_at_a_cut_is_not_passed_on(world: World) -> None:
    got = bytearray()
    async with raw_server(Fake(ROLE, TOKENS[0], TOKENS[1][:20], then=b"")) as server:
        call = Call("chat", CHAT, stream=True)
        async with world.backends["vllm"].send(replica(server), call, world.meter) as reply:
            with pytest.raises(Interrupted):
                await _into(got, reply.body)
    assert bytes(got) == ROLE + TOKENS[0]


async def test_a_server_that_keeps_the_stream_open_after_done(world: World) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD + chunk(b"".join([*ANSWER, DONE])))
        await peer.gone()

    start = time.perf_counter()
    _, out = await world.ask("vllm", script, stream=True, idle_timeout=30)
    assert out == b"".join([*ANSWER, DONE])
    assert time.perf_counter() - start < 5


async def test_a_connection_is_used_again_after_a_stream(world: World) -> None:
    """Also where the last chunk comes in a packet of its own, as uvicorn sends it."""

    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(STREAM_HEAD + chunk(b"".join([*ANSWER, DONE])))
            await asyncio.sleep(0.02)
            await peer.send(LAST_CHUNK)

    async with raw_server(script) as server:
        for _ in range(3):
            await world.send(world.backends["vllm"], server, stream=True)
        assert server.connections == 1


async def test_an_error_after_tokens_passes_and_is_told(world: World) -> None:
    bad = b'data: {"error":{"message":"CUDA error","code":500}}\n\n'
    got = bytearray()
    async with raw_server(Fake(ROLE, *TOKENS, bad, DONE)) as server:
        call = Call("chat", CHAT, stream=True)
        async with world.backends["vllm"].send(replica(server), call, world.meter) as reply:
            with pytest.raises(Interrupted) as caught:
                await _into(got, reply.body)
    assert bytes(got) == b"".join([ROLE, *TOKENS, bad, DONE])
    assert caught.value.told


async def _into(got: bytearray, body: AsyncIterator[bytes]) -> None:
    async for piece in body:
        got += piece


# --- refusals ---

FIRST_ERRORS = {
    "vllm": (
        b'{"object":"error","message":"bad guided_json","type":"BadRequestError","code":400}',
        400,
        "bad guided_json",
    ),
    "tgi": (
        b'{"error":{"message":"Input validation error: x","http_status_code":422}}',
        422,
        "Input validation error: x",
    ),
    "llamacpp": (b'{"error":{"code":400,"message":"no template","type":"invalid_request_error"}}', 400, "no template"),
    "openai": (b'{"error":{"message":"nope"}}', 500, "nope"),
}


@pytest.mark.parametrize("name", FIRST_ERRORS)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_in_place_of_the_first_token_has_a_real_status(world: World, name: str, stream: bool) -> None:
    data, status, message = FIRST_ERRORS[name]
    fake = Fake(b": keep-alive\n\n", b"data: " + data + b"\n\n", DONE)
    with pytest.raises(Refused, match=message) as caught:
        await world.ask(name, fake, stream=stream)
    assert caught.value.status == status


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_servers_own_refusal(world: World, name: str, stream: bool) -> None:
    fake = Fake()
    fake.post = answer(
        b'{"error":{"message":"bad top_p","type":"invalid_request_error","param":"top_p"}}', status="400 Bad Request"
    )
    with pytest.raises(Refused, match="bad top_p") as caught:
        await world.ask(name, fake, stream=stream)
    assert (caught.value.status, caught.value.param, caught.value.retryable) == (400, "top_p", False)
    assert world.upstream.stats().in_use == 0


async def test_trtllm_refuses_keys_it_does_not_know_and_we_drop_none(world: World) -> None:
    fake = Fake()
    fake.post = answer(
        b"{\"error\":\"[{'type': 'extra_forbidden', 'loc': ('body', 'metadata')}]\"}", status="400 Bad Request"
    )
    with pytest.raises(Refused, match="extra_forbidden"):
        await world.ask("trtllm", fake, b'{"metadata":{}}', stream=True)
    assert fake.body["metadata"] == {}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry_after": "3"}, 3.0),
        ({"retry_after": "86400"}, 60.0),
        ({"retry_after": formatdate(1e9 + 20, usegmt=True)}, 20.0),
    ],
)
@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_an_overloaded_server(world: World, headers: dict[str, str], seconds: float | None, status: str) -> None:
    fake = Fake()
    fake.post = answer(b'{"error":"Model is overloaded","error_type":"overloaded"}', status=status, **headers)
    async with raw_server(fake) as server:
        with pytest.raises(Overloaded) as caught:
            await world.send(OpenAIHttp(world.upstream, now=lambda: 1e9), server)
    assert (caught.value.status, caught.value.retry_after) == (int(status[:3]), seconds)


async def test_an_error_whose_body_never_ends(world: World) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 500 Oops\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await peer.send(chunk(b"x" * 1000))

    with pytest.raises(Refused, match="xxx"):
        await world.ask("openai", script)


@pytest.mark.parametrize("body", [b"", b"\n\n", b": only a comment\n\n"])
async def test_an_empty_stream_is_no_answer(world: World, body: bytes) -> None:
    async with raw_server(Fake(*([body] if body else []))) as server:
        with pytest.raises(Broken, match="without a single event"):
            await world.send(world.backends["vllm"], server, stream=True)
    assert not world.meter.finished


async def test_an_empty_document_is_no_answer(world: World) -> None:
    fake = Fake()
    fake.post = answer(b"")
    with pytest.raises(Broken, match="empty"):
        await world.ask("openai", fake)


# --- leaving ---


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", NAMES)
async def test_leaving_ends_the_request_upstream(world: World, name: str, stream: bool) -> None:
    async with raw_server(Fake(*[PROGRESS, ROLE, *TOKENS] * 200, gap=0.01)) as server:
        task = asyncio.ensure_future(world.send(world.backends[name], server, stream=stream))
        await settles(lambda: world.meter.chunks > 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.upstream.stats().in_use == 0
        await settles(lambda: server.open == 0)


# --- health, load, models ---

METRICS = {
    "llamacpp": ("/metrics", b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n", Load(2, 1)),
    "vllm": (
        "/metrics",
        b'vllm:num_requests_running{engine="0"} 2\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n',
        Load(2, 0, 0.5),
    ),
    "tgi": ("/metrics", b"tgi_queue_size 3\ntgi_batch_current_size 1\n", Load(1, 3)),
    "trtllm": ("/prometheus/metrics", b"trtllm_kv_cache_utilization 0.5\n", Load(0, 0, 0.5)),
}


@pytest.mark.parametrize("name", METRICS)
async def test_probe_reads_health_and_load(world: World, name: str) -> None:
    path, text, load = METRICS[name]
    fake = Fake()
    fake.gets = {"/health": answer(b""), path: answer(text)}
    async with raw_server(fake) as server:
        assert await world.backends[name].probe(replica(server, "sk-up")) == load
        assert [request.line for request in fake.asked] == ["GET /health HTTP/1.1", f"GET {path} HTTP/1.1"]
        assert {request.headers["authorization"] for request in fake.asked} == {"Bearer sk-up"}
        assert server.connections == 1


@pytest.mark.parametrize("name", METRICS)
async def test_probe_without_metrics_is_alive_all_the_same(world: World, name: str) -> None:
    fake = Fake()
    fake.gets = {"/health": answer(b'{"status":"ok"}')}
    async with raw_server(fake) as server:
        assert await world.backends[name].probe(replica(server)) == Load()


@pytest.mark.parametrize("name", NAMES)
async def test_probe_of_a_server_that_is_loading(world: World, name: str) -> None:
    fake = Fake()
    loading = answer(b'{"error":{"code":503,"message":"Loading model"}}', status="503 Service Unavailable")
    fake.gets = {"/health": loading, "/v1/models": loading}
    async with raw_server(fake) as server:
        assert await world.backends[name].probe(replica(server)) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("status", ["500 Oops", "401 Unauthorized"])
async def test_probe_of_a_server_that_will_not_do(world: World, name: str, status: str) -> None:
    fake = Fake()
    fake.gets = {"/health": answer(b"", status=status), "/v1/models": answer(b"", status=status)}
    async with raw_server(fake) as server:
        with pytest.raises(Unreachable):
            await world.backends[name].probe(replica(server))


@pytest.mark.parametrize("name", NAMES)
async def test_probe_of_nobody(world: World, name: str) -> None:
    async with raw_server(Fake()) as server:
        pass
    with pytest.raises(Unreachable):
        await world.backends[name].probe(replica(server))


async def test_probe_of_a_server_that_hangs(world: World) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async with raw_server(script) as server:
        with pytest.raises(Unreachable):
            await OpenAIHttp(world.upstream, probe_timeout=0.1).probe(replica(server))


async def test_served_models(world: World) -> None:
    fake = Fake()
    fake.gets = {"/v1/models": answer(b'{"object":"list","data":[{"id":"smol","owned_by":"x"},{"id":"alias"}]}')}
    async with raw_server(fake) as server:
        assert await world.backends["openai"].served_models(replica(server)) == ("smol", "alias")
        assert await world.backends["openai"].probe(replica(server)) == Load()


@pytest.mark.parametrize("body", [b"[]", b"<html>", b'{"data":[{}]}'])
async def test_served_models_that_are_none(world: World, body: bytes) -> None:
    fake = Fake()
    fake.gets = {"/v1/models": answer(body)}
    async with raw_server(fake) as server:
        with pytest.raises(Refused):
            await world.backends["openai"].served_models(replica(server))
