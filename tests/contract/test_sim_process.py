"""The simulator as a program, and its fastest mode."""

import asyncio
import shlex
import signal
import sys

import httpx
import msgspec
import pytest

from engines.sim.__main__ import parse
from engines.sim.fastest import serve_fastest
from engines.sim.options import Options
from tests.support.sim import sim_process

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


def test_options_have_the_names_of_the_fields():
    options, watch = parse(
        shlex.split(
            "--port 8000 --dialect tgi --model m --slots 8 --prefill-rate 5e3 --decode-rate 10 --kv-blocks 9"
            " --block-tokens 2 --start-delay 1.5 --fault cut:3 --fastest --no-embeddings --watch-stdin"
        )
    )
    assert watch
    assert options == Options(
        port=8000,
        dialect="tgi",
        model="m",
        slots=8,
        prefill_rate=5000.0,
        decode_rate=10.0,
        kv_blocks=9,
        block_tokens=2,
        start_delay=1.5,
        fault="cut:3",
        fastest=True,
        embeddings=False,
    )


def test_without_options_all_is_default():
    assert parse([]) == (Options(), False)


@pytest.mark.parametrize("argv", [["--fault", "oops"], ["--dialect", "other"], ["--slots", "x"], ["--nonsense"]])
def test_what_makes_no_sense_is_refused(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(argv)
    assert caught.value.code == 2
    assert "error" in capsys.readouterr().err


def test_help_lists_every_fault(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    told = capsys.readouterr().out
    assert "split-codepoint" in told
    assert "cut:N" in told


@pytest.mark.parametrize(("context", "longest"), [(0, 32), (20, 20), (500, 32)])
def test_nothing_is_longer_than_the_cache(context, longest):
    assert Options(kv_blocks=8, block_tokens=4, context=context).longest == longest


async def test_a_process_answers_drains_and_leaves_with_0():
    async with (
        sim_process(decode_rate=50, drain=5) as process,
        httpx.AsyncClient(verify=False, base_url=process.url) as client,
    ):
        going = asyncio.create_task(client.post(CHAT, json=HELLO | {"max_tokens": 25}))
        while (await client.get("/sim/state")).json()["running"] == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        process.signal(signal.SIGTERM)
        assert (await going).json()["usage"]["completion_tokens"] == 25
        assert await process.wait() == 0


def test_the_key_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("TURNOUT_ENGINE_KEY", "hush")
    assert parse([])[0].api_key == "hush"
    assert parse(["--api-key", "mine"])[0].api_key == "mine"


async def test_a_process_leaves_when_stdin_ends():
    async with sim_process("--watch-stdin") as process:
        process.process.stdin.write(b"anything\n")
        await process.process.stdin.drain()
        with pytest.raises(TimeoutError):
            await process.wait(0.1)
        process.process.stdin.close()
        assert await process.wait() == 0


async def test_a_port_in_use_is_an_error_in_one_line():
    async with sim_process() as process:
        port = process.url.rpartition(":")[2]
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engines.sim", "--port", port, stderr=asyncio.subprocess.PIPE
        )
        _, told = await second.communicate()
    assert second.returncode == 1
    assert b"address already in use" in told.lower()
    assert len(told.splitlines()) == 1


class TestFastest:
    async def test_answers_of_the_length_that_was_asked_for(self):
        async with (
            serve_fastest(Options(model="m", chunks=6)) as url,
            httpx.AsyncClient(verify=False, base_url=url) as client,
        ):
            whole = (await client.post(CHAT, json=HELLO)).json()
            stream = (await client.post(CHAT, json=HELLO | {"stream": True})).text
            default = (await client.post(CHAT, json={"messages": [], "stream": True})).text
        assert whole["usage"]["completion_tokens"] == 3
        assert whole["choices"][0]["message"]["content"] == " word" * 3
        *frames, done = stream.removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]"
        chunks = [msgspec.json.decode(frame.removeprefix("data: ")) for frame in frames]
        assert len(chunks) == 1 + 3 + 1
        assert chunks[-1]["usage"]["completion_tokens"] == 3
        assert default.count('"content":" word"') == 6

    async def test_paced_chunks_come_one_by_one(self):
        options = Options(chunks=5, chunk_interval=0.02)
        async with serve_fastest(options) as url, httpx.AsyncClient(verify=False, base_url=url) as client:
            pieces = []
            async with client.stream("POST", CHAT, json={"stream": True}) as answer:
                pieces.extend([piece async for piece in answer.aiter_raw()])
        assert len(pieces) >= 5
        assert "".join(piece.decode() for piece in pieces).endswith("data: [DONE]\n\n")

    async def test_a_paced_client_may_leave(self):
        options = Options(chunks=500, chunk_interval=0.005)
        async with serve_fastest(options) as url, httpx.AsyncClient(verify=False, base_url=url) as client:
            async with client.stream("POST", CHAT, json={"stream": True}) as answer:
                async for _ in answer.aiter_raw():
                    break
            assert (await client.get("/health")).json() == {"status": "ok"}

    async def test_probes(self):
        async with serve_fastest(Options(model="m")) as url, httpx.AsyncClient(verify=False, base_url=url) as client:
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "m"
            assert "vllm:num_requests_running 0" in (await client.get("/metrics")).text

    async def test_it_runs_as_a_process(self):
        async with (
            sim_process("--fastest", chunks=4) as process,
            httpx.AsyncClient(verify=False, base_url=process.url) as client,
        ):
            assert (await client.post(CHAT, json=HELLO)).json()["usage"]["completion_tokens"] == 3
            process.signal()
            assert await process.wait() == 0
