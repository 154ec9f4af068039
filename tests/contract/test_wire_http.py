"""HTTP/1.1 from clients at its edges: heads without end, half requests, pipelines, upgrades, smuggling, odd paths."""

import asyncio
import json
import re

import pytest

from gateway.api import protocol
from tests.support.client import CHAT, HI, connect, reply, request, say, small
from tests.support.gateway import gateway, until
from tests.support.raw_server import answer, raw_server
from tests.support.sim import sim

BODY = json.dumps(HI).encode()


@pytest.fixture
async def served(tmp_path):
    async with sim() as server, gateway(tmp_path, small(server)) as handle:
        yield handle, server


def headless(*headers):
    """A request whose head says how long the body is in its own way."""
    lines = [f"POST {CHAT} HTTP/1.1", "host: x", "authorization: Bearer sk-test", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


UPGRADES = [
    ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"),
    ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13"),
]


@pytest.mark.parametrize("upgrade", UPGRADES)
async def test_an_offer_to_upgrade_costs_a_request_nothing(served, upgrade):
    handle, server = served
    plain, chunked = request(HI, *upgrade), headless("transfer-encoding: chunked", *upgrade)
    size = b"%x\r\n" % len(BODY)
    at = plain.index(b"\r\n\r\n")
    ways = [
        [plain],
        [plain[: at + 4], plain[at + 4 :]],
        [plain[: at + 3], plain[at + 3 :]],
        [plain[:-1], plain[-1:]],
        [chunked + size + BODY + b"\r\n0\r\n\r\n"],
        [chunked, size, BODY, b"\r\n0\r\n\r\n"],
    ]
    for pieces in ways:
        status, _, body = await say(handle, *pieces)
        assert (status, json.loads(body)["object"]) == (200, "chat.completion")
    assert [json.loads(one["body"])["messages"] for one in server.requests] == [HI["messages"]] * len(ways)
    status, *_ = await say(handle, request(b"", *upgrade, method="GET", path="/v1/models"))
    assert status == 200


async def test_the_connection_goes_on_after_a_declined_upgrade(served):
    handle, _ = served
    reader, writer = await connect(handle)
    many = [
        request(HI, *UPGRADES[0]),
        request(HI),
        request(b"", method="GET", path="/v1/models"),
        request(HI, *UPGRADES[0]),
    ]
    writer.write(b"".join(many))  # in one packet: pipelined
    async with asyncio.timeout(5):
        assert [(await reply(reader))[0] for _ in many] == [200] * 4
        writer.write(request(HI))
        assert (await reply(reader))[0] == 200
    writer.close()


@pytest.mark.parametrize("way", ["one", "many", "trickle", "path"])
async def test_a_head_without_end_is_refused(served, way):
    handle, server = served
    long = {
        "one": [request(HI, "x-long: " + "y" * 400_000)],
        "many": [request(HI, *(f"x-{number}: y" for number in range(20_000)))],
        "trickle": [b"POST / HTTP/1.1\r\nx: ", *[b"y" * 10_000] * 20],
        "path": [request(HI, path="/" + "y" * 400_000)],
    }
    status, headers, body = await say(handle, *long[way])
    assert (status, json.loads(body)["error"]["code"], headers["connection"]) == (431, "headers_too_large", "close")
    status, *_ = await say(handle, request(HI, "x-long: " + "y" * 60_000))
    assert status == 200 and len(server.requests) == 1


@pytest.mark.parametrize("ending", [b"0\r\nx-trailer: ", b"0\r\nx-a: b\r\n", b"5;x="])
async def test_nothing_else_without_end_is_read_either(served, ending):
    handle, server = served
    begun = headless("transfer-encoding: chunked") + b"%x\r\n%s\r\n" % (len(BODY), BODY) + ending
    more = b"x-a: b\r\n" * 1000 if ending.endswith(b"\n") else b"y" * 10_000
    status, _, body = await say(handle, begun, *[more] * 100)
    assert (status, json.loads(body)["error"]["code"]) == (431, "headers_too_large")
    await handle.idle()
    assert not server.requests


async def test_a_trailer_is_no_header(served):
    handle, _ = served
    chunked = headless("transfer-encoding: chunked").replace(b"authorization: Bearer sk-test\r\n", b"")
    whole = chunked + b"%x\r\n%s\r\n0\r\nauthorization: Bearer sk-test\r\n\r\n" % (len(BODY), BODY)
    assert (await say(handle, whole))[0] == 401


async def test_a_large_body_has_no_such_limit(served):
    handle, _ = served
    messages = [{"role": "user", "content": "x" * 1_000_000}]
    assert (await say(handle, request(HI | {"messages": messages})))[0] in (200, 400)
    body = json.dumps(HI | {"messages": messages}).encode()
    pieces = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
    chunked = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]
    assert (await say(handle, headless("transfer-encoding: chunked"), *chunked, b"0\r\n\r\n"))[0] in (200, 400)


async def test_a_request_that_stops_half_way_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "PATIENCE", 0.3)
    async with sim(prefill_rate=10.0) as server, gateway(tmp_path, small(server)) as handle:
        whole = request(HI)
        slow = asyncio.create_task(say(handle, whole))  # one that waits for its answer is not meant
        for half in (b"", b"POST /v1", whole[:60], whole[:-3]):
            status, _, body = await say(handle, half)
            assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout"), half
        assert (await slow)[0] == 200
        reader, writer = await connect(handle)
        for _ in range(4):  # slow, but not silent
            writer.write(whole[: len(whole) // 4])
            whole = whole[len(whole) // 4 :]
            await asyncio.sleep(0.15)
        writer.write(whole)
        assert (await reply(reader))[0] == 200
        writer.close()


NO_HTTP = [
    request(BODY, "transfer-encoding: chunked"),
    headless("transfer-encoding: xchunked") + BODY,
    headless("transfer-encoding: chunked", "transfer-encoding: identity") + b"0\r\n\r\n",
    headless("content-length: 5", "content-length: 6") + BODY,
    headless("content-length: -1") + BODY,
    headless("content-length: 99999999999999999999999") + BODY,
    headless("transfer-encoding: chunked") + b"zz\r\n",
    request(BODY, "x y: z"),
    request(BODY, "tracestate: a=b\rx: y"),
    request(BODY, "tracestate: a=b\x00"),
    request(BODY, "tracestate: a=b\r\n c"),
    request(BODY).replace(b"\r\n", b"\n"),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"CONNECT h:1 HTTP/1.1\r\nhost: h\r\n\r\n",
]


async def test_what_is_no_http_is_told_so_and_reaches_nobody(served):
    handle, server = served
    for data in NO_HTTP:
        status, headers, body = await say(handle, data)
        assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_request"), data[:200]
        assert headers["connection"] == "close", data[:200]
    assert not server.requests
    await handle.idle()


async def test_garbage_behind_a_request_does_not_end_up_in_its_answer(served):
    handle, server = served
    reader, writer = await connect(handle)
    writer.write(request(HI | {"stream": True, "max_tokens": 2000}))
    await reader.readuntil(b"data: ")
    writer.write(b"\x00garbage\r\n\r\n")
    try:
        async with asyncio.timeout(5):
            rest = await reader.read()
    except ConnectionError:
        rest = b""
    assert b"HTTP/1.1 400" not in rest
    writer.close()
    await handle.idle()
    await server.until(2.0, running=0)


async def test_one_that_sent_its_next_request_and_left_is_seen_to_leave(tmp_path):
    async with sim(decode_rate=50.0) as server, gateway(tmp_path, small(server)) as handle:
        reader, writer = await connect(handle)
        writer.write(request(HI | {"stream": True, "max_tokens": 2000}) + request(HI))
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        await handle.idle(3.0)
        await server.until(2.0, running=0, waiting=0)


async def test_ways_to_ask_that_are_all_fine(served):
    handle, server = served
    size = b"%x" % len(BODY)
    ways = {
        "expect": request(HI, "expect: 100-continue"),
        "trailers": headless("transfer-encoding: chunked") + size + b"\r\n" + BODY + b"\r\n0\r\nx-a: b\r\n\r\n",
        "an extension": headless("transfer-encoding: chunked") + size + b";a=b\r\n" + BODY + b"\r\n0\r\n\r\n",
        "a doubled slash": request(HI, path="/" + CHAT),
        "a last slash": request(HI, path=CHAT + "/"),
        "a query": request(HI, path=CHAT + "?api-version=1"),
        "a whole URL": request(HI, path="http://host" + CHAT),
        "HTTP/1.0": request(HI).replace(b"HTTP/1.1", b"HTTP/1.0"),
        "words of no Latin": request(HI, "tracestate: a=\xe4\xbd\xa0", "traceparent: \xff"),
    }
    for name, data in ways.items():
        reader, writer = await connect(handle)
        writer.write(data)
        status, _, body = await reply(reader)
        if status == 100:
            status, _, body = await reply(reader)
        assert (status, json.loads(body)["object"]) == (200, "chat.completion"), name
        writer.close()
    for path in (CHAT + "/x", "/v1/%2e%2e/v1/chat/completions", "/v1/%00", "/v1/%ff", "*"):
        status, _, body = await say(handle, request(HI, path=path))
        assert (status, json.loads(body)["error"]["code"]) == (404, "not_found"), path
    assert len(server.requests) == len(ways)


async def test_a_trace_state_that_is_too_long_or_strange_goes_no_further(served):
    handle, server = served
    parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for state in ("a=" + "x" * 60_000, "a=\xe4\xbd\xa0"):
        assert (await say(handle, request(HI, parent, f"tracestate: {state}")))[0] == 200
    assert not [one for one in server.requests if "tracestate" in str(one["headers"]).lower()]


async def test_an_engine_that_answers_before_it_has_read_the_request(tmp_path):
    async def script(peer):
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(answer(b'{"error":{"message":"too much"}}', status="413 Too Large", connection="close"))

    async with raw_server(script) as server, gateway(tmp_path, small(server)) as handle:
        for length in (10, 5_000_000):
            messages = [{"role": "user", "content": "x" * length}]
            status, _, body = await say(handle, request(HI | {"messages": messages}))
            assert (status, json.loads(body)["error"]["message"]) == (413, "too much")
        await handle.idle()


async def test_what_is_logged_of_a_request_holds_neither_key_nor_prompt(tmp_path, caplog):
    caplog.set_level(0)
    secret = {"messages": [{"role": "user", "content": "a very private matter"}]}

    async with sim(slots=1) as server:
        pools = small(server, key="sk-upstream")
        async with gateway(tmp_path, pools) as handle, handle.client() as client:
            for fault in ("", "500", "cut:1", "error-event:1", "malformed:1", "hang-up"):
                for stream in (False, True):
                    await client.post(CHAT, json=HI | secret | {"stream": stream, "sim_fault": fault})
            for bad in (b'{"model":"small","messages":["a very private matter"]', b"a very private matter"):
                await say(handle, request(bad))
            await say(handle, b"a very private matter sk-test\r\n\r\n")
            metrics = (await client.get("/metrics")).text
            await until(lambda: not handle.live.leases)
            ask = handle.run.pipeline
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith(("turnout", "uvicorn")))
    for told in (ours, metrics, repr(ask)):
        assert not re.search(r"private|sk-test|sk-upstream|sk-wrong", told)
