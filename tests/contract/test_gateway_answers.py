"""What a client of the gateway gets: answers, headers, errors, and nothing left behind when it leaves."""

import asyncio
import json
import re

import httpx
import pytest

from tests.support.gateway import BEARER, KEY, gateway, records, until
from tests.support.sim import sim

HI = {"model": "auto", "max_tokens": 5, "messages": [{"role": "user", "content": "What is 2+2?"}]}
EVENT = re.compile(rb"data: (.*)\n\n")


def ask(**changes):
    return {**HI, **changes}


def chunks(body):
    return [json.loads(data) for data in EVENT.findall(body) if data != b"[DONE]"]


@pytest.fixture
async def pair(tmp_path):
    """Two simulated pools behind a gateway."""
    async with sim(dialect="llamacpp", slots=2) as small, sim(dialect="vllm", slots=2) as large:
        pools = {
            "small": {"url": small.url, "backend": "llamacpp", "tier": "small", "model": "sim", "slots": 2},
            "large": {"url": large.url, "backend": "vllm", "tier": "large", "model": "sim", "slots": 2, "price": 2.0},
            "embed": {"url": large.url, "kind": "embed", "model": "sim"},
        }
        async with gateway(tmp_path, pools) as handle:
            yield handle, small, large


async def test_a_plain_answer_and_what_it_says_of_itself(pair):
    handle, small, large = pair
    async with handle.client() as client:
        reply = await client.post("/v1/chat/completions", json=ask(model="small"))
    body = reply.json()
    assert reply.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["usage"]["completion_tokens"] == 5
    assert re.fullmatch(r"req_[0-9a-f]{24}", reply.headers["x-turnout-request-id"])
    told = {name: reply.headers[f"x-turnout-{name}"] for name in ("pool", "route", "prefix-hit", "compression")}
    assert told == {"pool": "small", "route": "forced", "prefix-hit": "0.00", "compression": "off"}
    assert reply.headers["x-turnout-replica"] == "small-1"
    assert reply.headers["x-turnout-prefix-mode"].startswith("approximate")
    assert small.state()["seen"] and not large.state()["seen"]
    await handle.idle()


async def test_auto_is_routed_by_expected_gain(pair):
    handle, *_ = pair
    async with handle.client() as client:
        reply = await client.post("/v1/chat/completions", json=HI)
    assert re.fullmatch(r"gain=[+-]\d\.\d{3}", reply.headers["x-turnout-route"])
    assert reply.headers["x-turnout-pool"] in ("small", "large")


async def test_a_stream_passes_without_what_the_client_did_not_ask_for(pair):
    handle, *_ = pair
    async with handle.client() as client:
        bare = await client.post("/v1/chat/completions", json=ask(model="small", stream=True))
        options = {"include_usage": True}
        full = await client.post("/v1/chat/completions", json=ask(model="small", stream=True, stream_options=options))
    assert bare.headers["content-type"].startswith("text/event-stream")
    assert bare.content.endswith(b"data: [DONE]\n\n")
    assert not [chunk for chunk in chunks(bare.content) if not chunk.get("choices")]
    usage = [chunk["usage"] for chunk in chunks(full.content) if not chunk["choices"]]
    assert [one["completion_tokens"] for one in usage] == [5]
    assert b"prompt_progress" not in bare.content + full.content


async def test_fields_we_do_not_know_reach_the_server_as_they_were(pair):
    handle, small, _ = pair
    raw = (
        b'{"model":"small","max_tokens":2,"chat_template_kwargs":{"a":1.50,"\\u00e9":null},'
        b'"messages":[{"role":"user","content":"hi","x":[1e5]},{"role":"assistant","content":null,"tool_calls":[]}]}'
    )
    async with handle.client() as client:
        reply = await client.post("/v1/chat/completions", content=raw)
    assert reply.status_code == 200
    sent = small.requests[-1]["body"]
    assert '"chat_template_kwargs":{"a":1.50,"\\u00e9":null}' in sent
    assert '"content":null,"tool_calls":[]' in sent and '"x":[1e5]' in sent
    assert json.loads(sent)["model"] == "sim"


async def test_only_headers_on_the_list_reach_the_server(pair):
    handle, small, _ = pair
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"traceparent": parent, "cookie": "a=b", "x-secret": "1", "openai-organization": "o"}
    async with handle.client() as client:
        await client.post("/v1/chat/completions", json=ask(model="small"), headers=headers)
    got = {name.lower(): value for name, value in dict(small.requests[-1]["headers"]).items()}
    assert got["traceparent"].split("-")[1] == parent.split("-")[1] and got["traceparent"] != parent
    assert not {"cookie", "x-secret", "openai-organization"} & set(got)
    assert KEY not in str(got)


async def test_completions_and_embeddings(pair):
    handle, *_ = pair
    async with handle.client() as client:
        text = await client.post("/v1/completions", json={"model": "small", "prompt": "Once", "max_tokens": 3})
        vectors = await client.post("/v1/embeddings", json={"model": "embed", "input": ["a", "b"]})
        wrong = await client.post("/v1/embeddings", json={"model": "small", "input": "a"})
    assert text.json()["object"] == "text_completion"
    assert len(vectors.json()["data"]) == 2
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
    assert "embed" in wrong.json()["error"]["message"]


async def test_models_health_and_metrics(pair):
    handle, *_ = pair
    async with handle.client() as client:
        models = (await client.get("/v1/models")).json()
        assert {one["id"] for one in models["data"]} == {"auto", "small", "large", "embed"}
        assert (await client.get("/v1/models/auto")).json()["id"] == "auto"
        assert (await client.get("/v1/models/none")).status_code == 404
        assert (await client.get("/health/live")).json()["status"] == "ok"
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["pools"]["small"]) == (200, {"ready": 1, "scalable": False})
        await client.post("/v1/chat/completions", json=ask(model="small"))
        text = (await client.get("/metrics")).text
        assert 'turnout_pool="small"' in text and "gen_ai_server_time_to_first_token_seconds_bucket" in text
    async with httpx.AsyncClient(base_url=handle.url) as stranger:
        assert (await stranger.get("/v1/models")).status_code == 401
        assert (await stranger.get("/metrics")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_request"),
        ("POST", "/v1/chat/completions", b'{"model":"auto"}', 400, "invalid_request"),
        ("POST", "/v1/chat/completions", b'{"model":"none","messages":[]}', 404, "model_not_found"),
        ("GET", "/v1/chat/completions", b"", 405, "method_not_allowed"),
        ("POST", "/v1/none", b"", 404, "not_found"),
        ("POST", "/v1/models", b"", 405, "method_not_allowed"),
    ],
)
async def test_errors_speak_openai(pair, method, path, content, status, code):
    handle, *_ = pair
    async with handle.client() as client:
        reply = await client.request(method, path, content=content)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "code", "param"}
    if path == "/v1/chat/completions":
        assert reply.headers["x-turnout-request-id"]


async def test_without_or_with_a_wrong_key(pair):
    handle, *_ = pair
    async with httpx.AsyncClient(base_url=handle.url) as client:
        none = await client.post("/v1/chat/completions", json=HI)
        wrong = await client.post("/v1/chat/completions", json=HI, headers={"authorization": "Bearer sk-wrong"})
    assert [none.status_code, wrong.status_code] == [401, 401]
    assert wrong.headers["www-authenticate"] == "Bearer" and "sk-wrong" not in wrong.text


async def test_a_body_that_is_too_large(tmp_path):
    async with sim() as server, gateway(tmp_path, {"small": {"url": server.url}}, gateway={"max_body": 1000}) as handle:

        async def parts():
            for _ in range(20):
                yield b" " * 100

        async with handle.client() as client:
            declared = await client.post("/v1/chat/completions", content=b" " * 1001)
            chunked = await client.post("/v1/chat/completions", content=parts())
    assert [declared.status_code, chunked.status_code] == [413, 413]
    assert declared.json()["error"]["code"] == "request_too_large"


async def test_the_servers_own_refusal_is_told(pair):
    handle, *_ = pair
    async with handle.client() as client:
        reply = await client.post("/v1/chat/completions", json=ask(model="small", sim_fault="500"))
    assert reply.status_code == 500
    assert reply.json()["error"]["message"]
    assert reply.headers["x-turnout-pool"] == "small"
    await handle.idle()


async def test_a_busy_server_gives_the_client_its_retry_after(pair):
    handle, *_ = pair
    async with handle.client() as client:
        reply = await client.post("/v1/chat/completions", json=ask(model="small", sim_fault="429:7"))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "7")
    assert reply.json()["error"]["code"] == "no_replica_available"


async def test_another_replica_answers_when_one_is_dead(tmp_path):
    async with sim() as server:
        pools = {"small": {"url": ["http://127.0.0.1:9", server.url], "model": "sim"}}
        async with gateway(tmp_path, pools) as handle, handle.client() as client:
            replies = [await client.post("/v1/chat/completions", json=ask(model="small")) for _ in range(6)]
            assert [reply.status_code for reply in replies] == [200] * 6
            assert {reply.headers["x-turnout-replica"] for reply in replies} == {"small-2"}
            await handle.idle()


async def test_no_replica_at_all(tmp_path):
    async with gateway(tmp_path, {"small": {"url": "http://127.0.0.1:9", "model": "m"}}) as handle:
        async with handle.client() as client:
            replies = [await client.post("/v1/chat/completions", json=ask(model="small")) for _ in range(5)]
        assert {reply.status_code for reply in replies} <= {502, 503}
        assert replies[-1].json()["error"]["code"] == "no_replica_available"
        assert int(replies[-1].headers["retry-after"]) >= 1


async def test_a_stream_that_breaks_off_says_so_and_has_no_done(pair):
    handle, *_ = pair
    async with handle.client() as client:
        reply = await client.post(
            "/v1/chat/completions", json=ask(model="large", stream=True, max_tokens=20, sim_fault="cut:8")
        )
    assert reply.status_code == 200
    last = chunks(reply.content)[-1]
    assert last["error"]["code"] == "stream_incomplete"
    assert b"[DONE]" not in reply.content
    assert len(chunks(reply.content)) > 5
    await handle.idle()
    rows = await records(handle, 1)
    assert (rows[0].outcome, rows[0].error) == ("interrupted", "stream_incomplete")


async def test_a_whole_answer_that_breaks_off_has_a_true_status(pair):
    handle, *_ = pair
    async with handle.client() as client:
        # llama.cpp is always asked for a stream, so its answer is known to be broken before it is begun
        for model, code in (("small", "upstream_failed"), ("large", "stream_incomplete")):
            reply = await client.post("/v1/chat/completions", json=ask(model=model, max_tokens=20, sim_fault="cut:8"))
            assert (reply.status_code, reply.json()["error"]["code"]) == (502, code)
    await handle.idle()


async def leave(handle, body, *, after_bytes):
    """A client that goes away: at once, or after the first bytes of the answer."""
    host, port = handle.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(data)}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + data)
    await writer.drain()
    if after_bytes:
        await reader.readuntil(b"data: ")
    else:
        await asyncio.sleep(0.2)
    writer.transport.abort()


# a whole answer has no first bytes before its last
@pytest.mark.parametrize(("after_bytes", "stream"), [(False, True), (True, True), (False, False)])
@pytest.mark.parametrize("dialect", ["llamacpp", "vllm"])
async def test_clients_that_leave_leave_nothing_behind(tmp_path, dialect, after_bytes, stream):
    slow = {"decode_rate": 20.0} if after_bytes else {"prefill_rate": 10.0}
    async with sim(dialect=dialect, slots=20, **slow) as server:
        pools = {"small": {"url": server.url, "backend": dialect, "model": "sim", "slots": 20}}
        async with gateway(tmp_path, pools) as handle:
            body = ask(model="small", stream=stream, max_tokens=2000)
            await asyncio.gather(*(leave(handle, body, after_bytes=after_bytes) for _ in range(20)))
            await handle.idle(2.0)
            await server.until(2.0, running=0, waiting=0)
            rows = await records(handle, 20)
            assert {row.outcome for row in rows} == {"cancelled"}


async def test_waiting_for_a_slot_in_order_and_being_refused(tmp_path):
    async with sim(slots=1, decode_rate=50.0) as server:
        pools = {"small": {"url": server.url, "model": "sim", "slots": 1, "queue_limit": 2, "queue_wait": 10}}
        async with gateway(tmp_path, pools) as handle, handle.client() as client:
            body = ask(model="small", max_tokens=20)
            first = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            await server.until(2.0, running=1)
            waiting = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for _ in range(2)]
            await until(lambda: handle.live.waiting.get("small") == 2)
            refused = await client.post("/v1/chat/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
            assert int(refused.headers["retry-after"]) >= 1
            assert [reply.status_code for reply in await asyncio.gather(first, *waiting)] == [200] * 3
            assert max(one["running"] for one in [server.state()]) <= 1
            await handle.idle()


async def test_a_client_that_leaves_the_queue_gives_its_place_up(tmp_path):
    async with sim(slots=1, decode_rate=20.0) as server:
        pools = {"small": {"url": server.url, "model": "sim", "slots": 1}}
        async with gateway(tmp_path, pools) as handle, handle.client() as client:
            first = asyncio.create_task(client.post("/v1/chat/completions", json=ask(model="small", max_tokens=10)))
            await server.until(2.0, running=1)
            await leave(handle, ask(model="small"), after_bytes=False)
            assert (await first).status_code == 200
            await handle.idle()
            assert len(server.requests) == 1


async def test_the_second_request_finds_its_prefix(tmp_path):
    words = " ".join(f"word{number}" for number in range(600))
    async with sim(dialect="llamacpp", slots=4) as one, sim(dialect="llamacpp", slots=4) as two:
        pools = {"small": {"url": [one.url, two.url], "backend": "llamacpp", "model": "sim"}}
        async with gateway(tmp_path, pools) as handle, handle.client() as client:

            async def send(ending):
                messages = [{"role": "user", "content": f"{words} {ending}"}]
                return await client.post("/v1/chat/completions", json=ask(model="small", messages=messages))

            first, second, third = await send("and one"), await send("and two"), await send("three")
    hits = [float(reply.headers["x-turnout-prefix-hit"]) for reply in (first, second, third)]
    assert hits[0] == 0 and min(hits[1:]) > 0.8
    assert len({reply.headers["x-turnout-replica"] for reply in (first, second, third)}) == 1
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_lossless_compression_is_told_and_can_be_refused(pair):
    handle, small, _ = pair
    table = json.dumps([{"name": f"n{number}", "value": number} for number in range(60)], indent=4)
    messages = [
        {"role": "user", "content": "List them."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": table},
        {"role": "user", "content": "How many?"},
    ]
    async with handle.client() as client:
        reply = await client.post("/v1/chat/completions", json=ask(model="small", messages=messages))
        off = await client.post(
            "/v1/chat/completions", json=ask(model="small", messages=messages), headers={"x-turnout-compress": "off"}
        )
        wrong = await client.post("/v1/chat/completions", json=HI, headers={"x-turnout-compress": "much"})
    before, after = map(int, reply.headers["x-turnout-compression"].split("->"))
    assert after < before * 0.7
    assert off.headers["x-turnout-compression"] == "off"
    sent, whole = small.bodies()[-2:]
    assert json.loads(sent["messages"][2]["content"]) == json.loads(table)
    assert len(sent["messages"][2]["content"]) < len(table)
    assert whole["messages"] == messages
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-turnout-compress")


async def test_a_keys_limits(tmp_path):
    async with sim() as server:
        keys = [
            {"name": "few", "key": "sk-few", "requests_per_minute": 2},
            {"name": "only", "key": "sk-only", "models": ["auto"]},
        ]
        async with gateway(tmp_path, {"small": {"url": server.url, "model": "sim"}}, keys=keys) as handle:
            async with httpx.AsyncClient(base_url=handle.url, headers={"authorization": "Bearer sk-few"}) as few:
                replies = [await few.post("/v1/chat/completions", json=ask(model="small")) for _ in range(3)]
            async with httpx.AsyncClient(base_url=handle.url, headers={"authorization": "Bearer sk-only"}) as only:
                other = await only.post("/v1/chat/completions", json=ask(model="small"))
                assert {one["id"] for one in (await only.get("/v1/models")).json()["data"]} == {"auto"}
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert int(replies[-1].headers["retry-after"]) > 30
    assert (other.status_code, other.json()["error"]["code"]) == (403, "model_not_allowed")


async def test_every_request_is_recorded_once(pair):
    handle, *_ = pair
    async with handle.client() as client:
        good = await client.post("/v1/chat/completions", json=ask(model="small"))
        bad = await client.post("/v1/chat/completions", json=ask(model="none"))
    rows = {row.id: row for row in await records(handle, 2)}
    assert set(rows) == {good.headers["x-turnout-request-id"], bad.headers["x-turnout-request-id"]}
    row = rows[good.headers["x-turnout-request-id"]]
    assert (row.status, row.outcome, row.pool, row.caller) == (200, "ok", "small", "tester")
    assert row.completion_tokens == 5 and row.prompt_tokens == good.json()["usage"]["prompt_tokens"]
    assert 0 < row.ttft <= row.duration and row.tpot > 0 and set(row.because) >= {"wait", "prefill", "decode"}
    assert rows[bad.headers["x-turnout-request-id"]].status == 404


async def test_head_and_options_are_answered(pair):
    handle, *_ = pair
    async with handle.client() as client:
        assert (await client.options("/v1/chat/completions", headers=BEARER)).status_code in (204, 405)
        assert (await client.head("/health/live")).status_code in (200, 405)
