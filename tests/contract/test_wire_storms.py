"""Many at once, leaving at any moment, while engines fail and replicas come and go: afterwards nothing is left of them."""

import asyncio
import json
import random
from collections import Counter

import msgspec

from tests.support.client import HI, connect, reply, request, say
from tests.support.gateway import gateway, records, until
from tests.support.raw_server import raw_server
from tests.support.sim import sim

FAULTS = ["", "", "cut:3", "silence:3", "slow:1", "slow-body:1", "429", "500", "hang-up", "reset:2", "malformed:2"]
FAULTS += ["split", "close", "gzip", "comments", "crlf", "error-event:3", "cut-inside:2", "no-done", "separators"]


async def visit(handle, dice):
    """One client: it asks for anything, sends all or a part of it, waits a while, and leaves."""
    body = HI | {
        "model": dice.choice(["small", "lc", "auto", "none"]),
        "stream": dice.random() < 0.7,
        "max_tokens": dice.choice([3, 30, 200]),
        "sim_fault": dice.choice(FAULTS),
    }
    data = request(body)
    reader, writer = await connect(handle)
    try:
        writer.write(data[: dice.choice([len(data), len(data), len(data), 50, len(data) - 5])])
        async with asyncio.timeout(dice.choice([0, 0.005, 0.02, 0.1])):
            while await reader.read(1000):
                pass
    except (TimeoutError, ConnectionError):
        pass
    if dice.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()


def assert_clean(handle):
    assert (handle.live.inflight, handle.live.waiting, handle.live.leases) == ({}, {}, {})
    assert all((line.waiting, line.turns) == (0, 0) for line in handle.run.gateway.queue.stats().values())


async def test_clients_that_leave_at_any_moment(tmp_path):
    dice = random.Random(7)
    async with sim(dialect="vllm", decode_rate=500.0) as one, sim(dialect="llamacpp", decode_rate=500.0) as two:
        pools = {
            "small": {"url": one.url, "backend": "vllm", "model": "sim", "slots": 4, "queue_limit": 8},
            "lc": {"url": two.url, "backend": "llamacpp", "model": "sim", "slots": 4, "queue_limit": 8},
        }
        async with gateway(tmp_path, pools) as handle:
            before = len(asyncio.all_tasks())
            for _ in range(6):
                await asyncio.gather(*(visit(handle, dice) for _ in range(25)))
            await handle.idle(5.0)
            await one.until(3.0, running=0, waiting=0)
            await two.until(3.0, running=0, waiting=0)
            assert_clean(handle)
            upstream = handle.run.pipeline.backends["vllm"]._upstream  # all backends share it
            await until(lambda: upstream.stats().in_use == 0)
            await until(lambda: len(asyncio.all_tasks()) == before)


async def test_far_more_than_there_are_slots(tmp_path):
    served = []

    async def ask(handle, number):
        status, headers, _ = await say(handle, request(HI | {"user": str(number)}))
        return status, int(headers.get("retry-after", 0))

    async with sim(decode_rate=2000.0) as server:
        pools = {"small": {"url": server.url, "model": "sim", "slots": 2, "queue_limit": 20, "queue_wait": 30.0}}
        async with gateway(tmp_path, pools) as handle:
            got = await asyncio.gather(*(ask(handle, number) for number in range(120)))
            assert_clean(handle)
        served = [status for status, _ in got if status == 200]
        refused = [after for status, after in got if status == 503]
    assert len(served) >= 22 and len(served) + len(refused) == 120
    assert all(1 <= after <= 60 for after in refused)
    assert len(server.requests) == len(served)


async def test_a_pool_that_sleeps_on(tmp_path):
    """The deadline comes, and nobody is left waiting; the one that left is not missed."""
    async with gateway(tmp_path, {"small": {"url": "http://127.0.0.1:9", "model": "m"}}) as handle:
        catalog = handle.run.gateway.catalog()
        asleep = msgspec.structs.replace(
            catalog.pools["small"], replicas=(), scalable=True, rests_at_zero=True, queue_wait=0.4
        )
        handle.run.gateway.publish(msgspec.structs.replace(catalog, pools={"small": asleep}))
        _, writer = await connect(handle)
        writer.write(request(HI))
        await until(lambda: handle.live.waiting.get("small"))
        writer.transport.abort()
        answers = await asyncio.gather(*(say(handle, request(HI)) for _ in range(5)))
        assert_clean(handle)
    for status, headers, body in answers:
        assert (status, json.loads(body)["error"]["code"]) == (503, "no_replica_available")
        assert int(headers["retry-after"]) >= 1


async def test_replicas_that_come_and_go_under_running_streams(tmp_path):
    dice = random.Random(3)
    async with sim(decode_rate=200.0) as one, sim(decode_rate=200.0) as two:
        pools = {"small": {"url": [one.url, two.url], "model": "sim", "slots": 2, "queue_wait": 30.0}}
        async with gateway(tmp_path, pools) as handle:
            ours = handle.run.gateway
            pool = ours.catalog().pools["small"]
            first, second = pool.replicas

            def publish(*replicas):
                new = msgspec.structs.replace(pool, replicas=replicas)
                ours.publish(msgspec.structs.replace(ours.catalog(), pools={"small": new}))

            streams = []
            for number in range(4):
                reader, writer = await connect(handle)
                writer.write(request(HI | {"stream": True, "max_tokens": 100 + number}))
                assert (await reply(reader))[0] == 200
                streams.append((reader, writer))
            waiting = []
            for number in range(15):
                newer = msgspec.structs.replace(first, incarnation=str(number))
                publish(*dice.choice([(first,), (second,), (first, second), (newer, second), (newer,)]))
                waiting.append(asyncio.create_task(say(handle, request(HI))))
                await asyncio.sleep(0.01)
            publish(first, second)
            for reader, writer in streams:
                assert b"data: [DONE]" in await reader.readuntil(b"0\r\n\r\n"), "a stream outlives its replica's entry"
                writer.close()
            assert Counter(answer[0] for answer in await asyncio.gather(*waiting)) == {200: 15}
            assert_clean(handle)
            assert handle.live.incarnations == {}


async def test_why_a_server_could_not_answer_is_logged_in_our_words(tmp_path, caplog):
    async def script(peer):
        await peer.request()

    async with raw_server(script) as server:
        pools = {
            "cut": {"url": server.url, "model": "m"},
            "gone": {"url": "http://127.0.0.1:9", "model": "m"},
            "tls": {"url": server.url.replace("http", "https"), "model": "m", "ca": str(tmp_path / "none.pem")},
        }
        async with gateway(tmp_path, pools) as handle:
            for model in pools:
                assert (await say(handle, request(HI | {"model": model})))[0] == 502
            names = [row.id for row in reversed(await records(handle, 3))]
    told = [one.getMessage() for one in caplog.records if one.name == "turnout.api"]
    assert [line.split()[1].rstrip(":") for line in told] == names
    assert "closed the connection" in told[0] and "127.0.0.1:9" in told[1] and "No such file" in told[2]
