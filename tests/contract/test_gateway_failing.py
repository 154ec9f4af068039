"""What happens when a replica fails, a prompt is refused, a pool sleeps on, or the gateway leaves."""

import asyncio
import json

import httpx
import uvicorn

from gateway.app import create_app, running
from gateway.settings import load
from tests.support.gateway import BEARER, empty_database, gateway, tree, until
from tests.support.sim import sim

LONG = " ".join(f"word{number}" for number in range(400))


def ask(text="hi", **changes):
    return {"model": "small", "max_tokens": 4, "messages": [{"role": "user", "content": text}], **changes}


async def test_a_refused_prompt_is_not_taken_for_cached(tmp_path):
    async with sim(slots=4) as server:
        pools = {"small": {"url": server.url, "model": "sim"}}
        async with gateway(tmp_path, pools) as handle, handle.client() as client:
            refused = await client.post("/v1/chat/completions", json=ask(LONG, sim_fault="500"))
            after = await client.post("/v1/chat/completions", json=ask(LONG))
            again = await client.post("/v1/chat/completions", json=ask(LONG))
            late = await client.post("/v1/chat/completions", json=ask(LONG, sim_fault="500"))
            still = await client.post("/v1/chat/completions", json=ask(LONG))
    assert refused.status_code == late.status_code == 500
    assert float(after.headers["x-turnout-prefix-hit"]) == 0.0
    assert float(again.headers["x-turnout-prefix-hit"]) > 0.9
    assert float(still.headers["x-turnout-prefix-hit"]) > 0.9  # what was held before the refusal still is


async def test_a_replica_that_dies_before_the_first_byte_is_replaced_by_another(tmp_path):
    async with sim(fault="hang-up") as dying, sim() as sound:
        pools = {"small": {"url": [dying.url, sound.url], "model": "sim"}}
        async with gateway(tmp_path, pools) as handle, handle.client() as client:
            replies = [await client.post("/v1/chat/completions", json=ask()) for _ in range(4)]
            assert [reply.status_code for reply in replies] == [200] * 4
            assert dying.requests
            await handle.idle()


async def test_a_request_that_kills_its_server_does_not_go_round_all_of_them(tmp_path):
    async with sim(fault="hang-up") as one, sim(fault="hang-up") as two, sim(fault="hang-up") as three:
        urls = [one.url, two.url, three.url]
        async with gateway(tmp_path, {"small": {"url": urls, "model": "sim"}}) as handle, handle.client() as client:
            reply = await client.post("/v1/chat/completions", json=ask())
            assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_failed")
            assert sum(len(server.requests) for server in (one, two, three)) == 2


async def test_a_pool_that_never_wakes_is_told_as_such(tmp_path):
    pools = {"small": {"recipe": {"engine": "llamacpp", "source": "x"}, "minimum": 0, "queue_wait": 0.3}}
    async with gateway(tmp_path, pools) as handle, handle.client() as client:
        reply = await client.post("/v1/chat/completions", json=ask())
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_replica_available")
        assert "no replica" in reply.json()["error"]["message"]
        await handle.idle()


async def test_pools_of_one_tier_are_no_question_for_the_classifier(tmp_path):
    async with sim() as one, sim() as two:
        pools = {"a": {"url": one.url, "model": "sim"}, "b": {"url": two.url, "model": "sim"}}
        async with gateway(tmp_path, pools, aliases={"either": {"pools": ["a"]}}) as handle, handle.client() as client:
            reply = await client.post("/v1/chat/completions", json=ask(model="either"))
    assert (reply.status_code, reply.headers["x-turnout-route"]) == (200, "rule")


async def test_a_gateway_alone_asks_servers_for_the_name_of_their_model(tmp_path):
    async with sim(model="their-model") as server:
        async with gateway(tmp_path, {"small": {"url": server.url}}) as handle, handle.client() as client:
            reply = await client.post("/v1/chat/completions", json=ask(model="auto"))
        assert reply.status_code == 200
        assert [body["model"] for body in server.bodies()] == ["their-model"]


async def test_a_server_that_comes_later_is_asked_later(tmp_path):
    async with sim() as spare:
        address = spare.url  # a port that was free a moment ago
    async with gateway(tmp_path, {"small": {"url": address, "queue_wait": 0.2}}) as handle, handle.client() as client:
        assert (await client.post("/v1/chat/completions", json=ask())).status_code == 503
        async with sim(model="late", port=int(address.rsplit(":", 1)[1])):
            await until(lambda: handle.run.gateway.catalog().pools["small"].replicas, 10)
            assert (await client.post("/v1/chat/completions", json=ask())).status_code == 200


async def test_a_stream_that_the_gateway_must_leave_ends_with_an_error_event(tmp_path):
    async with sim(decode_rate=20.0) as server:
        settings = load(None, {}, builtin=tree(tmp_path, {"small": {"url": server.url, "model": "sim"}}))
        await empty_database(settings)
        async with running(settings) as run:
            config = uvicorn.Config(
                create_app(run), port=0, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1
            )
            host = uvicorn.Server(config)
            task = asyncio.create_task(host.serve())
            await until(lambda: host.started)
            port = host.servers[0].sockets[0].getsockname()[1]
            async with httpx.AsyncClient(headers=BEARER, timeout=20) as client:
                body = ask(stream=True, max_tokens=2000)
                async with client.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as reply:
                    seen = []
                    async for line in reply.aiter_lines():
                        seen.append(line)
                        if len(seen) == 3:
                            host.should_exit = True
            await task
            run.pictures.end()
        events = [line for line in seen if line.startswith("data:")]
        assert json.loads(events[-1][5:])["error"]["code"] == "stream_incomplete"
        assert "data: [DONE]" not in events
        await server.until(2.0, running=0)
