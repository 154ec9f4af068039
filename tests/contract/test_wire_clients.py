"""What a client may send or do that is not quite a request, and what it and its neighbours then get."""

import json

import msgspec

from gateway.api import departure
from tests.support.client import CHAT, HI, connect, request, say, small
from tests.support.gateway import KEY, gateway, records, until
from tests.support.raw_server import STREAM_HEAD, answer, chunk, raw_server
from tests.support.sim import sim


async def test_a_key_that_comes_twice_is_refused_on_every_route(tmp_path):
    async with sim() as server, gateway(tmp_path, small(server)) as handle:
        for path, method, body in ((CHAT, "POST", HI), ("/v1/models", "GET", b""), ("/v1/models/small", "GET", b"")):
            for first, second in (("wrong", KEY), (KEY, "wrong"), (KEY, KEY)):
                two = f"authorization: Bearer {first}"
                status, _, told = await say(handle, request(body, two, method=method, path=path, key=second))
                assert (status, json.loads(told)["error"]["param"]) == (400, "authorization"), (path, first)
        status, *_ = await say(handle, request(HI, "x-a: 1", "x-a: 2"))  # others may
    assert status == 200 and len(server.requests) == 1


async def test_a_refused_method_names_the_one_that_is_taken(tmp_path):
    async with sim() as server, gateway(tmp_path, small(server)) as handle:
        for method in ("GET", "PUT", "OPTIONS", "DELETE"):
            status, headers, _ = await say(handle, request(b"", method=method))
            assert (status, headers["allow"]) == (405, "POST"), method
        status, headers, _ = await say(handle, request(b"", method="GET", path="/v1/models", key="wrong"))
        assert (status, headers["www-authenticate"]) == (401, "Bearer")


async def test_a_models_name_of_any_kind_is_told_and_kept_short(tmp_path):
    names = ["m" * 1_000_000, "a\r\nx-injected: 1", "a\x00b", "\u2028", "名" * 300]
    async with sim() as server, gateway(tmp_path, small(server)) as handle:
        for name in names:
            status, headers, told = await say(handle, request(HI | {"model": name}))
            assert (status, len(told) < 1000, "x-injected" in headers) == (404, True, False), name[:20]
        rows = await records(handle, len(names))
    assert max(len(row.model) for row in rows) == 200
    assert all(row.model.isprintable() for row in rows)


async def test_what_a_model_server_calls_its_error_is_kept_short_too(tmp_path):
    code = "c\x00d" * 1000
    bad = answer(json.dumps({"error": {"message": "no", "code": code}}).encode(), status="400 Bad Request")

    async def script(peer):
        await peer.request()
        await peer.send(bad)

    async with raw_server(script) as server, gateway(tmp_path, small(server)) as handle:
        status, _, told = await say(handle, request(HI))
        assert (status, json.loads(told)["error"]["code"]) == (400, code)
        row = (await records(handle, 1))[0]
    assert len(row.error) == 200 and row.error.isprintable()


async def test_another_pool_is_tried_before_one_that_would_have_to_wake(tmp_path):
    """A failed request does not wait for a cold start; that one would be cheaper must not hide the one that is there."""
    async with sim() as server:
        pools = {"asleep": {"url": "http://127.0.0.1:9", "model": "m"}, "large": {"url": server.url, "model": "sim"}}
        async with gateway(tmp_path, pools) as handle:
            ours = handle.run.gateway
            catalog = ours.catalog()
            dead = msgspec.structs.replace(catalog.pools["asleep"], scalable=True, cold_start=0.0)
            dear = msgspec.structs.replace(catalog.pools["large"], price=50.0, tier="large")
            ours.publish(msgspec.structs.replace(catalog, pools={"asleep": dead, "large": dear}))
            replica = dead.replicas[0]
            for _ in range(2):
                ours.breaker.failed(replica)  # the next failure holds it back: the pool then looks asleep
            status, headers, told = await say(handle, request(HI | {"model": "auto"}))
    assert (status, headers.get("x-turnout-pool")) == (200, "large"), told


async def test_a_client_that_stops_reading_a_stream_is_let_go(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(departure, "SEND_LIMIT", 0.3)
    sent = 0
    token = chunk(b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 1000 + b'"}}]}\n\n')

    async def script(peer):
        nonlocal sent
        await peer.request()
        await peer.send(STREAM_HEAD)
        while sent < 50_000:
            await peer.send(token)
            sent += 1

    async with raw_server(script) as server, gateway(tmp_path, small(server)) as handle:
        reader, writer = await connect(handle)
        writer.write(request(HI | {"stream": True}))
        await reader.read(10)
        writer.transport.pause_reading()
        await until(lambda: handle.live.inflight)
        await handle.idle(5.0)
        await until(lambda: server.open == 0)
        writer.transport.abort()
        assert (await records(handle, 1))[0].outcome == "cancelled"
    assert sent < 40_000, "what was not read has piled up neither here nor there"
    assert "read nothing" in caplog.text
