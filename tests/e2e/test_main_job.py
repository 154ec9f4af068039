"""The main job on real models: answers, routing, prefix cache, clients that leave, from zero. Mechanics, never truth."""

import asyncio
import json
import shlex
import subprocess
import time

import httpx
import pytest

from tests.support import models
from tests.support.turnout import left_of, turnout_up

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

SHORT = "What is 2+2?"
PROOF = (
    "Let (X, d) be a compact metric space and let f be a continuous real function on X. Prove, step by step and with "
    "full rigour, that f is uniformly continuous. Then show by a counterexample that compactness cannot be dropped, "
    "and use the theorem to prove that every continuous function on [0, 1] is Riemann integrable. State each lemma."
)


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    data = models.link_into(tmp_path_factory.mktemp("up") / "data")
    with turnout_up(data, "--port", "0", seconds=120) as running:
        yield running


def chat(up, text, **changes):
    body = {"model": "auto", "max_tokens": 8, "messages": [{"role": "user", "content": text}], **changes}
    return up.ask("/v1/chat/completions", body, timeout=60)


def slots(up):
    """Requests that run or wait inside the engines, as the engines say."""
    from gateway.db.engine import open_database
    from gateway.db.repositories import replicas

    async def look():
        async with open_database(f"sqlite:///{up.data / 'turnout.db'}") as db:
            rows = await replicas.list_all(db)
        key = (up.data / "engine-key").read_text().strip()
        async with httpx.AsyncClient(timeout=5, headers={"authorization": f"Bearer {key}"}) as client:
            found = [(await client.get(f"{row.url}/slots")).json() for row in rows if row.state == "ready"]
        return sum(slot["is_processing"] for server in found for slot in server)

    return asyncio.run(look())


def test_the_printed_curl_answers(up):
    out = subprocess.run(shlex.split(up.curl), capture_output=True, text=True, timeout=60, check=True).stdout
    answer = json.loads(out)
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] > 0


def test_auto_sends_an_easy_and_a_hard_question_to_different_pools(up):
    easy, hard = chat(up, SHORT)[1], chat(up, PROOF)[1]
    assert (easy["x-turnout-pool"], hard["x-turnout-pool"]) == ("small", "large")
    gains = [float(one["x-turnout-route"].removeprefix("gain=")) for one in (easy, hard)]
    assert gains[0] < gains[1]


def test_both_pools_answer_by_name_and_the_large_one_is_a_mixture_of_experts(up):
    for pool in ("small", "large"):
        answer, headers = chat(up, SHORT, model=pool)
        assert headers["x-turnout-pool"] == pool and headers["x-turnout-route"] == "forced"
        assert answer["usage"]["completion_tokens"] == 8
    manifests = [json.loads(path.read_text()) for path in (up.data / "artefacts").glob("*/manifest.json")]
    assert {manifest["recipe"].get("experts") for manifest in manifests} == {None, 8}


def first_token(up, text, pool="small"):
    """Seconds to the first content, and the answer's headers."""
    body = {"model": pool, "stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {up.key}"}
    began = time.perf_counter()
    with httpx.stream("POST", f"{up.url}/v1/chat/completions", json=body, headers=headers, timeout=60) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                assert "prompt_progress" not in line
                choices = json.loads(line[6:])["choices"]
                if choices and choices[0]["delta"].get("content"):
                    return time.perf_counter() - began, reply.headers
    raise AssertionError("no token came")


def test_a_prefix_that_a_replica_holds_costs_a_tenth(up):
    prefix = " ".join(f"Line {number} speaks of the number {number * 7}." for number in range(75))
    cold, first = first_token(up, f"{prefix} What is on the first line?")
    warm, second = first_token(up, f"{prefix} And what does the last line say?")
    assert float(first["x-turnout-prefix-hit"]) < 0.1
    assert float(second["x-turnout-prefix-hit"]) > 0.8
    assert second["x-turnout-prefix-mode"].startswith("approximate")
    assert warm <= cold / 10, (cold, warm)


async def leave(up, body, *, after_first):
    host, port = up.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {up.key}\r\ncontent-length: {len(data)}"
    writer.write(head.encode() + b"\r\n\r\n" + data)
    await writer.drain()
    if after_first:
        await asyncio.wait_for(reader.readuntil(b"data: "), 60)
    else:
        await asyncio.sleep(0.3)
    writer.transport.abort()


@pytest.mark.parametrize("after_first", [False, True])
def test_twenty_clients_that_leave_leave_nothing_running(up, after_first):
    """In waves of four: as many as there are slots run inside the engine, the rest wait at the gateway."""
    words = "tell me a very long story about rivers" if after_first else "tell me about rivers " * 60
    body = {
        "model": "small",
        "stream": after_first,
        "max_tokens": 500,
        "messages": [{"role": "user", "content": words}],
    }

    async def all_of_them():
        await asyncio.gather(*(leave(up, body, after_first=after_first) for _ in range(20)))

    if after_first:  # four at a time: each must have seen its first bytes
        for _ in range(5):
            asyncio.run(gather([leave(up, body, after_first=True) for _ in range(4)]))
    else:
        asyncio.run(all_of_them())
    deadline = time.monotonic() + 2.0
    while slots(up) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert slots(up) == 0
    metrics = httpx.get(f"{up.url}/metrics").text
    assert 'turnout_outcome="cancelled"' in metrics


async def gather(waiting):
    await asyncio.gather(*waiting)


def test_embeddings_wake_their_pool_from_zero(up):
    began = time.monotonic()
    answer, headers = up.ask("/v1/embeddings", {"model": "embed", "input": ["a river", "a bank"]}, timeout=60)
    assert headers["x-turnout-pool"] == "embed"
    assert [len(one["embedding"]) for one in answer["data"]] == [576, 576]
    again = time.monotonic()
    up.ask("/v1/embeddings", {"model": "embed", "input": "once more"}, timeout=60)
    assert time.monotonic() - again < again - began


def test_metrics_tell_of_it(up):
    text = httpx.get(f"{up.url}/metrics").text
    assert "gen_ai_server_time_to_first_token_seconds_count{" in text
    assert 'turnout_pool="small"' in text and 'turnout_pool="large"' in text


def test_ctrl_c_leaves_no_process(up):
    """Last in this file: it stops what the others use."""
    pids = [up.process.pid, *up.descendants()]
    assert len(pids) >= 6  # up, gateway, control, worker, two engines
    up.process.send_signal(2)
    up.process.wait(30)
    assert up.process.returncode == 0
    assert left_of(pids) == []
