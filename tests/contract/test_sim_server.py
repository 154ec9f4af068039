"""The simulator over real HTTP: dialect by dialect, queueing, disconnects, the prefix cache."""

import asyncio
import base64
import struct

import httpx
import msgspec
import pytest

from engines.sim.options import DialectName
from tests.support.sim import sim

DIALECTS = DialectName.__args__
HELLO = {"messages": [{"role": "user", "content": "Hello out there"}], "max_tokens": 5}
LONG = {
    "messages": [{"role": "system", "content": "word " * 200}, {"role": "user", "content": "Hello"}],
    "max_tokens": 2,
}
CHAT = "/v1/chat/completions"


async def ask(handle, body, path=CHAT, **headers):
    async with httpx.AsyncClient(verify=False, base_url=handle.url, headers=headers) as client:
        return await client.post(path, json=body)


async def get(handle, path, **headers):
    async with httpx.AsyncClient(verify=False, base_url=handle.url, headers=headers) as client:
        return await client.get(path)


async def events(handle, body, path=CHAT):
    """The JSON of each event of a stream; the terminator must be the last and is left out."""
    answer = await ask(handle, body | {"stream": True}, path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *frames, done = answer.text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [msgspec.json.decode(frame.removeprefix("data: ")) for frame in frames]


def spoken(chunks):
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"] if choice["index"] == 0
    )


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_stream_says_what_the_whole_answer_says(dialect):
    async with sim(dialect=dialect) as handle:
        whole = (await ask(handle, HELLO)).json()
        chunks = await events(handle, HELLO)
    (choice,) = whole["choices"]
    assert choice["message"]["content"] == spoken(chunks) != ""
    assert choice["finish_reason"] == "length"
    assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"]][-1] == "length"
    assert whole["usage"]["completion_tokens"] == 5
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_usage_comes_last_when_asked_for(dialect):
    async with sim(dialect=dialect) as handle:
        *_, last = await events(handle, HELLO | {"stream_options": {"include_usage": True}})
        whole = (await ask(handle, HELLO)).json()
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert ("prompt_tokens_details" in last["usage"]) == (dialect != "tgi")


@pytest.mark.parametrize(
    ("dialect", "first"),
    [
        ("vllm", {"role": "assistant", "content": ""}),
        ("trtllm", {"role": "assistant", "content": ""}),
        ("llamacpp", {"role": "assistant", "content": None}),
    ],
)
async def test_most_streams_begin_with_a_role(dialect, first):
    async with sim(dialect=dialect) as handle:
        chunks = await events(handle, HELLO)
    assert chunks[0]["choices"][0]["delta"] == first


async def test_tgi_names_the_role_in_each_chunk():
    async with sim(dialect="tgi") as handle:
        chunks = await events(handle, HELLO)
    assert [chunk["choices"][0]["delta"]["role"] for chunk in chunks] == ["assistant"] * 5


async def test_llama_cpp_tells_timings_and_progress_and_closes_the_connection():
    async with sim(dialect="llamacpp", batch_tokens=64) as handle:
        chunks = await events(handle, LONG | {"return_progress": True})
        whole = (await ask(handle, LONG)).json()
        async with httpx.AsyncClient(verify=False, base_url=handle.url) as client:
            await client.post(CHAT, json=HELLO)
            await client.post(CHAT, json=HELLO)
            assert handle.state()["connections"] == 1
            await client.post(CHAT, json=HELLO | {"stream": True})
            await handle.until(connections=0)
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert progress[0]["processed"] == 0
    assert [one["processed"] for one in progress[1:4]] == [64, 128, 192]
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
    assert chunks[-1]["timings"]["prompt_n"] == progress[0]["total"]
    assert whole["timings"]["cache_n"] == whole["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_completions(dialect):
    async with sim(dialect=dialect) as handle:
        whole = (await ask(handle, {"prompt": "Once", "max_tokens": 4}, "/v1/completions")).json()
        chunks = await events(handle, {"prompt": "Once", "max_tokens": 4}, "/v1/completions")
        two = (await ask(handle, {"prompt": ["Once", "Twice"], "max_tokens": 4}, "/v1/completions")).json()
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert whole["object"] == "text_completion"
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert two["usage"]["completion_tokens"] == 8


async def test_several_answers_stream_side_by_side():
    async with sim(slots=2) as handle:
        chunks = await events(handle, HELLO | {"n": 2, "stream_options": {"include_usage": True}})
        whole = (await ask(handle, HELLO | {"n": 2})).json()
    for index in (0, 1):
        said = "".join(c["delta"].get("content") or "" for x in chunks for c in x["choices"] if c["index"] == index)
        assert said == whole["choices"][index]["message"]["content"]
    assert chunks[-1]["usage"]["completion_tokens"] == 10
    order = [choice["index"] for chunk in chunks for choice in chunk["choices"]]
    assert order != sorted(order)


async def test_tool_calls_stream_in_pieces():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}]
    body = {"messages": HELLO["messages"], "tools": tools, "sim_tools": 2}
    async with sim() as handle:
        chunks = await events(handle, body)
        message = (await ask(handle, body)).json()["choices"][0]["message"]
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [call["function"]["name"] for call in calls if "id" in call] == ["f", "f"]
    for index in (0, 1):
        arguments = "".join(call["function"]["arguments"] for call in calls if call["index"] == index)
        assert arguments == message["tool_calls"][index]["function"]["arguments"] == '{"a":"sim"}'
    assert message["content"] is None
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_thoughts_and_logprobs():
    async with sim() as handle:
        chunks = await events(handle, HELLO | {"sim_reasoning": 2, "logprobs": True})
        message = (await ask(handle, HELLO | {"sim_reasoning": 2})).json()["choices"][0]["message"]
    thought = "".join(chunk["choices"][0]["delta"].get("reasoning_content", "") for chunk in chunks)
    assert thought == message["reasoning_content"] != ""
    assert spoken(chunks) == message["content"]
    assert chunks[1]["choices"][0]["logprobs"]["content"][0]["token"] == thought.split(" ")[0]


async def test_speculation_puts_several_tokens_in_a_chunk():
    async with sim(tokens_per_step=4) as handle:
        chunks = await events(handle, HELLO | {"max_tokens": 9, "stream_options": {"include_usage": True}})
    assert len([chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["delta"].get("content")]) == 3
    assert chunks[-1]["usage"]["completion_tokens"] == 9


class TestEmbeddings:
    async def test_unit_vectors_in_both_forms(self):
        async with sim(dimensions=8) as handle:
            plain = (await ask(handle, {"input": ["a", "b"]}, "/v1/embeddings")).json()
            packed = (await ask(handle, {"input": "a", "encoding_format": "base64"}, "/v1/embeddings")).json()
            ids = (await ask(handle, {"input": [1, 2, 3], "dimensions": 3}, "/v1/embeddings")).json()
        first, second = (one["embedding"] for one in plain["data"])
        assert first != second
        assert sum(value * value for value in first) == pytest.approx(1)
        assert struct.unpack("<8f", base64.b64decode(packed["data"][0]["embedding"])) == pytest.approx(first)
        assert plain["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
        assert len(ids["data"][0]["embedding"]) == 3

    async def test_switched_off(self):
        async with sim(dialect="llamacpp", embeddings=False) as handle:
            answer = await ask(handle, {"input": "a"}, "/v1/embeddings")
        assert answer.status_code == 501
        assert answer.json()["error"]["type"] == "not_supported_error"

    @pytest.mark.parametrize("given", [None, 5, {"a": 1}, [None]])
    async def test_nonsense(self, given):
        async with sim() as handle:
            assert (await ask(handle, {"input": given}, "/v1/embeddings")).status_code == 400


class TestQueueing:
    async def test_more_than_the_slots_wait_and_are_answered(self):
        async with sim(slots=2, decode_rate=100) as handle:
            going = [asyncio.create_task(ask(handle, HELLO | {"max_tokens": 20})) for _ in range(5)]
            await handle.until(running=2, waiting=3)
            answers = await asyncio.gather(*going)
            assert [answer.status_code for answer in answers] == [200] * 5
            assert handle.state()["finished"] == 5
            await handle.until(running=0, waiting=0, kv_held=0)

    @pytest.mark.parametrize(("dialect", "status"), [("vllm", 503), ("tgi", 429)])
    async def test_overload_is_answered_at_once_where_a_limit_is_set(self, dialect, status):
        async with sim(dialect=dialect, slots=1, max_queue=1, decode_rate=50) as handle:
            going = [asyncio.create_task(ask(handle, HELLO | {"max_tokens": 30})) for _ in range(2)]
            await handle.until(running=1, waiting=1)
            refused = await ask(handle, HELLO)
            assert refused.status_code == status
            if dialect == "tgi":
                assert refused.json() == {"error": "Model is overloaded", "error_type": "overloaded"}
            for one in going:
                one.cancel()
            await asyncio.gather(*going, return_exceptions=True)
            await handle.until(running=0, waiting=0)
            assert (await ask(handle, HELLO)).status_code == 200

    async def test_a_full_cache_preempts_and_everyone_is_answered_in_full(self):
        async with sim(slots=4, kv_blocks=12, block_tokens=4, batch_tokens=64) as handle:
            bodies = [{"prompt": list(range(at * 100, at * 100 + 8)), "max_tokens": 24} for at in range(4)]
            answers = await asyncio.gather(*(ask(handle, body, "/v1/completions") for body in bodies))
            assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [24] * 4
            assert handle.state()["preemptions"] > 0
            assert handle.state()["kv_held"] == 0


class TestPrefixCache:
    async def test_the_second_request_with_the_same_head_is_mostly_cached(self):
        async with sim() as handle:
            first = (await ask(handle, LONG)).json()["usage"]
            other = [LONG["messages"][0], {"role": "user", "content": "Something else now"}]
            second = (await ask(handle, LONG | {"messages": other})).json()["usage"]
        assert first["prompt_tokens_details"]["cached_tokens"] == 0
        cached = second["prompt_tokens_details"]["cached_tokens"]
        assert cached % 16 == 0
        assert 0.8 < cached / second["prompt_tokens"] < 1

    async def test_a_hit_saves_the_time_of_prefill(self):
        loop = asyncio.get_running_loop()
        async with sim(prefill_rate=1000, decode_rate=0) as handle:
            times = []
            for _ in range(2):
                begun = loop.time()
                await ask(handle, LONG)
                times.append(loop.time() - begun)
        assert times[0] > 0.2  # over 200 tokens at 1000 a second
        assert times[1] < times[0] / 2

    async def test_resetting_forgets(self):
        async with sim() as handle:
            await ask(handle, LONG)
            assert (await ask(handle, {}, "/reset_prefix_cache")).json() == {"cleared": True}
            usage = (await ask(handle, LONG)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0


class TestDisconnects:
    @pytest.mark.parametrize("stream", [True, False])
    async def test_leaving_while_decoding_frees_the_slot_at_once(self, stream):
        async with sim(decode_rate=50) as handle:
            going = [asyncio.create_task(ask(handle, HELLO | {"max_tokens": 5000, "stream": stream})) for _ in range(4)]
            await handle.until(running=4)
            for one in going:
                one.cancel()
            await asyncio.gather(*going, return_exceptions=True)
            state = await handle.until(1.0, running=0, kv_held=0, connections=0)
            assert state["cancelled"] == 4
            assert {one["ended"] for one in handle.requests} == {"cancelled"}

    async def test_leaving_during_prefill_and_in_the_queue(self):
        async with sim(slots=1, prefill_rate=100) as handle:
            going = [asyncio.create_task(ask(handle, LONG)) for _ in range(3)]
            await handle.until(running=1, waiting=2)
            for one in going:
                one.cancel()
            await asyncio.gather(*going, return_exceptions=True)
            await handle.until(1.0, running=0, waiting=0, kv_held=0, cancelled=3)

    async def test_a_deaf_server_notices_only_when_it_writes(self):
        """As llama.cpp's server does: an answer in one piece is computed to its end for nobody."""
        async with sim(fault="deaf", decode_rate=200) as handle:
            going = asyncio.create_task(ask(handle, HELLO | {"max_tokens": 60}))
            await handle.until(running=1)
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)
            await handle.until(connections=0)
            await asyncio.sleep(0.05)
            assert handle.state()["running"] == 1
            await handle.until(running=0, cancelled=1)
            assert handle.state()["answer_tokens"] == 60


class TestPages:
    @pytest.mark.parametrize("dialect", DIALECTS)
    async def test_models_and_health(self, dialect):
        async with sim(dialect=dialect, model="tiny") as handle:
            assert (await get(handle, "/v1/models")).json()["data"][0]["id"] == "tiny"
            assert (await get(handle, "/health")).status_code == 200

    @pytest.mark.parametrize(
        ("dialect", "path", "name"),
        [
            ("vllm", "/metrics", "vllm:num_requests_running"),
            ("tgi", "/metrics", "tgi_batch_current_size"),
            ("trtllm", "/prometheus/metrics", "trtllm_num_requests_running"),
            ("llamacpp", "/metrics", "llamacpp:requests_processing"),
        ],
    )
    async def test_metrics_tell_the_load(self, dialect, path, name):
        async with sim(dialect=dialect, decode_rate=50) as handle:
            going = asyncio.create_task(ask(handle, HELLO | {"max_tokens": 500}))
            await handle.until(running=1)
            page = await get(handle, path)
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)
        assert page.headers["content-type"].startswith("text/plain")
        (line,) = [line for line in page.text.splitlines() if line.startswith(name)]
        assert line.endswith(" 1")

    async def test_trtllm_drains_its_json(self):
        async with sim(dialect="trtllm") as handle:
            await ask(handle, HELLO)
            first, second = (await get(handle, "/metrics")).json(), (await get(handle, "/metrics")).json()
        assert len(first) == 5
        assert first[0]["numActiveRequests"] == 1
        assert first[0]["kvCacheStats"]["maxNumBlocks"] == 4096
        assert second == []

    async def test_trtllm_tells_kv_events(self):
        async with sim(dialect="trtllm") as handle:
            await ask(handle, LONG)
            told = (await ask(handle, {}, "/kv_cache_events")).json()
            again = (await ask(handle, {}, "/kv_cache_events")).json()
        assert [one["data"]["type"] for one in told] == ["created", "stored"]
        assert len(told[1]["data"]["blocks"]) > 10
        assert again == []

    async def test_kv_events_over_zmq_hold_what_the_cache_holds(self):
        import zmq
        import zmq.asyncio

        async with sim(kv_events="tcp://127.0.0.1:0", kv_topic="kv") as handle:
            with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as ear:
                ear.setsockopt(zmq.SUBSCRIBE, b"kv")
                ear.connect(handle.state()["kv_endpoint"])
                await asyncio.sleep(0.1)  # a subscription takes a moment to arrive
                await ask(handle, LONG)
                topic, sequence, payload = await asyncio.wait_for(ear.recv_multipart(), 5)
            kept = handle.state()["kv_kept"]
        assert (topic, sequence) == (b"kv", bytes(8))
        _, batch, _ = msgspec.msgpack.decode(payload)
        assert batch[0]["type"] == "BlockStored"
        assert len(batch[0]["block_hashes"]) == kept
        assert len(batch[0]["token_ids"]) == kept * 16

    @pytest.mark.parametrize(
        ("dialect", "shape"), [("vllm", "count"), ("trtllm", "count"), ("llamacpp", "tokens"), ("tgi", 0)]
    )
    async def test_tokenize(self, dialect, shape):
        async with sim(dialect=dialect) as handle:
            body = {"prompt": "one two", "content": "one two", "inputs": "one two"}
            told = (await ask(handle, body, "/tokenize")).json()
        assert told[shape]
        if dialect == "tgi":
            assert [(one["text"], one["start"], one["stop"]) for one in told] == [("one", 0, 3), (" two", 3, 7)]

    async def test_slots_and_info(self):
        async with sim(dialect="llamacpp", slots=3) as handle:
            assert [one["id"] for one in (await get(handle, "/slots")).json()] == [0, 1, 2]
        async with sim(dialect="tgi") as handle:
            assert (await get(handle, "/info")).json()["max_concurrent_requests"] == 128

    @pytest.mark.parametrize("dialect", DIALECTS)
    async def test_unknown_paths(self, dialect):
        async with sim(dialect=dialect) as handle:
            assert (await get(handle, "/nope")).status_code == 404
            assert (await get(handle, CHAT)).status_code == 404


class TestKeys:
    @pytest.mark.parametrize(
        ("dialect", "open_paths", "guarded_paths"),
        [
            ("llamacpp", ["/health"], ["/metrics", "/v1/models", "/slots"]),
            ("vllm", ["/health", "/metrics"], ["/v1/models"]),
            ("tgi", ["/health", "/metrics", "/v1/models"], []),
        ],
    )
    async def test_each_engine_guards_other_paths(self, dialect, open_paths, guarded_paths):
        async with sim(dialect=dialect, api_key="secret") as handle:
            assert [(await get(handle, path)).status_code for path in open_paths] == [200] * len(open_paths)
            assert [(await get(handle, path)).status_code for path in guarded_paths] == [401] * len(guarded_paths)
            assert (await ask(handle, HELLO)).status_code == 401
            assert (await ask(handle, HELLO, authorization="Bearer secret")).status_code == 200


class TestLife:
    async def test_while_loading_everything_is_503(self):
        async with sim(dialect="llamacpp", start_delay=0.15) as handle:
            early = await get(handle, "/health")
            assert early.status_code == 503
            assert early.json()["error"]["message"] == "Loading model"
            assert (await ask(handle, HELLO)).status_code == 503
            await asyncio.sleep(0.2)
            assert (await get(handle, "/health")).json() == {"status": "ok"}

    async def test_leaving_drains(self):
        async with sim(decode_rate=100, drain=5) as handle:
            going = asyncio.create_task(ask(handle, HELLO | {"max_tokens": 20}))
            await handle.until(running=1)
        assert (await going).json()["usage"]["completion_tokens"] == 20

    async def test_leaving_without_drain_breaks_off(self):
        async with sim(decode_rate=10) as handle:
            going = asyncio.create_task(ask(handle, HELLO | {"max_tokens": 500, "stream": True}))
            await handle.until(running=1)
        with pytest.raises(httpx.TransportError):
            await going

    async def test_idle_connections_are_closed_after_a_while(self):
        async with sim(keep_alive=0.1) as handle, httpx.AsyncClient(verify=False, base_url=handle.url) as client:
            await client.post(CHAT, json=HELLO)
            assert handle.state()["connections"] == 1
            await handle.until(connections=0)

    async def test_it_remembers_what_it_was_asked(self):
        async with sim(keep=2) as handle:
            for at in range(3):
                await ask(handle, HELLO | {"user": str(at)}, traceparent="00-1-2-01")
            state = (await get(handle, "/sim/state")).json()
        assert state["seen"] == 3
        assert [body["user"] for body in handle.bodies()] == ["1", "2"]
        assert state["requests"][0]["headers"]["traceparent"] == "00-1-2-01"
        assert [one["status"] for one in state["requests"]] == [200, 200]

    async def test_refusals_in_the_engine_s_shape_are_remembered_too(self):
        async with sim(dialect="trtllm") as handle:
            answer = await ask(handle, HELLO | {"metadata": {}})
            assert answer.status_code == 400
            assert answer.json() == {"error": "body.metadata: Extra inputs are not permitted"}
            assert handle.requests[0]["ended"] == "refused"

    async def test_bytes_that_are_not_http_are_refused(self):
        async with sim() as handle:
            reader, writer = await asyncio.open_connection(*handle.address)
            writer.write(b"\x00\x01nonsense\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400")
            writer.close()

    async def test_pipelined_requests_are_answered_in_turn(self):
        async with sim(model="m") as handle:
            reader, writer = await asyncio.open_connection(*handle.address)
            writer.write(b"GET /health HTTP/1.1\r\n\r\nGET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n")
            answers = (await reader.read()).decode()
            writer.close()
        assert answers.count("HTTP/1.1 200 OK") == 2
        assert answers.endswith("}")
