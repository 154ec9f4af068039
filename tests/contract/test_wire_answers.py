"""What a model server may send that is no answer, and what the client of the gateway then gets."""

import asyncio
import gzip
import json
from contextlib import asynccontextmanager

from backends import answers
from tests.support.gateway import gateway, records
from tests.support.raw_server import LAST_CHUNK, STREAM_HEAD, answer, chunk, raw_server

DOCUMENT = {
    "id": "x",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
WHOLE = json.dumps(DOCUMENT).encode()
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"tok"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
DEEP = b"[" * 100_000 + b"]" * 100_000
OLD = b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n"


def with_usage(prompt, completion):
    return json.dumps(DOCUMENT | {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}).encode()


def stream(*pieces):
    return STREAM_HEAD + b"".join(map(chunk, pieces)) + LAST_CHUNK


class Engine:
    """Says the same to every request, and closes the connection where that is how its answer ends."""

    def __init__(self):
        self.says = b""

    async def __call__(self, peer):
        while await peer.request():
            await peer.send(self.says)
            if self.says.startswith(b"HTTP/1.0"):
                return


@asynccontextmanager
async def serving(tmp_path):
    """A gateway with two pools over one engine: one is asked for documents, the other always for streams."""
    engine = Engine()
    async with raw_server(engine) as server:
        pools = {
            "vllm": {"url": server.url, "backend": "vllm", "model": "m", "slots": 4},
            "llamacpp": {"url": server.url, "backend": "llamacpp", "model": "m", "slots": 4},
        }
        async with gateway(tmp_path, pools) as handle, handle.client() as client:

            async def ask(says, *, model="vllm", stream=False):
                engine.says = says
                handle.run.gateway.breaker.keep(())  # what one case did is nothing to the next
                body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
                return await client.post("/v1/chat/completions", json=body)

            yield handle, ask
            await handle.idle()


NO_ANSWERS = {
    "a page": answer(b"<html><body>Log in</body></html>", content_type="text/html"),
    "a page that says it is JSON": answer(b"<html>"),
    "words": answer(b"Bad gateway", content_type="text/plain"),
    "nothing": answer(b""),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "another place": answer(b"", status="301 Moved Permanently", location="http://elsewhere/"),
    "half a document": answer(WHOLE[:60]),
    "a document cut where only the end tells": OLD + WHOLE[:90],
    "an array": answer(b"[]"),
    "null": answer(b"null"),
    "an unasked encoding": answer(WHOLE, content_encoding="br"),
}


async def test_what_is_no_answer_is_not_passed_on_as_one(tmp_path):
    async with serving(tmp_path) as (_, ask):
        for name, says in NO_ANSWERS.items():
            for model in ("vllm", "llamacpp"):
                reply = await ask(says, model=model)
                assert reply.status_code == 502, (name, model, reply.content)
                assert reply.json()["error"]["type"] == "server_error", (name, model)
                assert reply.headers["content-type"] == "application/json"


async def test_an_error_with_a_status_of_success_is_an_error(tmp_path):
    faults = {
        b'{"error":{"message":"exploded","type":"server_error","code":500}}': 500,
        b'{"error":"exploded"}': 500,
        b'{"object":"error","message":"exploded","code":404}': 404,
        b'{"error":{"message":"exploded","code":503}}': 503,
    }
    async with serving(tmp_path) as (_, ask):
        for says, status in faults.items():
            for model in ("vllm", "llamacpp"):
                reply = await ask(answer(says), model=model)
                assert reply.status_code == status, (says, model, reply.content)
        fine = await ask(answer(b'{"choices":[],"error":null}'))
        both = await ask(answer(b'{"choices":[{"index":0}],"error":{"message":"one of two failed"}}'))
    assert (fine.status_code, both.status_code) == (200, 200)


async def test_ways_to_send_a_sound_document(tmp_path):
    chunked = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    ways = [
        answer(WHOLE),
        answer(WHOLE, content_type="Application/JSON; charset=utf-8"),
        answer(WHOLE, content_type="text/plain"),
        answer(gzip.compress(WHOLE), content_encoding="gzip"),
        OLD + WHOLE,
        chunked + chunk(WHOLE[:10]) + chunk(WHOLE[10:]) + b"0\r\nx-trailer: 1\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + answer(WHOLE),
        answer(b"\n " + WHOLE + b" \n"),
    ]
    async with serving(tmp_path) as (_, ask):
        for says in ways:
            reply = await ask(says)
            assert (reply.status_code, reply.json()) == (200, DOCUMENT), says
            assert reply.headers["content-type"] == "application/json"
        deep = await ask(answer(b'{"x":' + DEEP + b"}"))  # too deep to be read, but not ours to judge
        assert (deep.status_code, len(deep.content)) == (200, len(DEEP) + 6)


async def test_events_that_cannot_be_read_pass_and_spoil_nothing(tmp_path):
    strange = {
        "deep": b'data: {"usage":1,"x":' + DEEP + b"}\n\n",
        "not UTF-8": b'data: {"choices":[{"index":0,"delta":{"content":"\xff"}}]}\n\n',
        "half a surrogate": b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n',
        "a number beyond all": b'data: {"choices":[],"usage":{"prompt_tokens":1e999}}\n\n',
        "another shape": b'data: {"choices":{}}\n\n',
        "no data": b"retry: 10\nid: 5\n\n",
    }
    async with serving(tmp_path) as (_, ask):
        for name, event in strange.items():
            for model in ("vllm", "llamacpp"):
                for pieces in ((event, TOKEN), (TOKEN, event)):
                    reply = await ask(stream(*pieces, END), model=model, stream=True)
                    assert reply.content == b"".join([*pieces, END]), (name, model)
                whole = await ask(stream(event, TOKEN, END), model="llamacpp")
                assert whole.json()["choices"][0]["message"]["content"].endswith("tok"), name


async def test_a_deep_event_that_never_ends_is_told_as_a_broken_stream(tmp_path):
    async with serving(tmp_path) as (_, ask):
        reply = await ask(stream(TOKEN, b'data: {"x":' + DEEP + b"\n"), stream=True)
    assert reply.content.startswith(TOKEN) and b"stream_incomplete" in reply.content[len(TOKEN) :]


async def test_a_count_of_tokens_that_cannot_be_harms_nothing(tmp_path):
    counts = [1e300, 10**20, 2**63 - 1, 2**62, -5, "5", 1e999]
    async with serving(tmp_path) as (handle, ask):
        for count in counts:
            says = with_usage(count, count).replace(b"Infinity", b"1e999")
            reply = await ask(answer(says))
            assert (reply.status_code, reply.content) == (200, says), count
        fine = await ask(answer(with_usage(900, 5)))  # far more tokens than bytes: pictures
        assert fine.status_code == 200, "what was learned from the others must not make this one too long"
        assert all(0 < ratio <= 1 for ratio in handle.live.tokens_per_byte.values())
        rows = await records(handle, len(counts) + 1)
        assert {row.prompt_tokens for row in rows} == {0, 900}


async def test_a_document_without_end_is_not_kept_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "DOCUMENT_LIMIT", 100_000)
    many = [TOKEN] * 3000
    async with serving(tmp_path) as (_, ask):
        bomb = await ask(answer(gzip.compress(b"a" * 20_000_000), content_encoding="gzip"))
        long = await ask(answer(b'{"x":"' + b"a" * 200_000 + b'"}'))
        put_together = await ask(stream(*many, END), model="llamacpp")
        streamed = await ask(stream(*many, END), model="llamacpp", stream=True)
    assert [reply.status_code for reply in (bomb, long, put_together)] == [502] * 3
    assert streamed.content.endswith(END), "a stream is not kept, so it has no such limit"


async def test_an_error_within_the_gateway_after_the_head_is_told_in_the_stream(tmp_path, monkeypatch, caplog):
    async def broken(*_):
        yield TOKEN
        await asyncio.sleep(0)
        raise ValueError("a fault of ours")

    monkeypatch.setattr("backends.openai_http.streamed", broken)
    async with serving(tmp_path) as (handle, ask):
        reply = await ask(stream(TOKEN, END), stream=True)
        assert reply.content.startswith(TOKEN + b'data: {"error"') and b"[DONE]" not in reply.content
        assert (await records(handle, 1))[0].outcome == "interrupted"
    assert "a fault of ours" in caplog.text and "ours" not in reply.text
