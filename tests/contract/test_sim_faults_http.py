"""Each fault of the simulator, seen as bytes by a client that forgives nothing."""

import asyncio
import gzip
from pathlib import Path

import msgspec
import pytest

from engines.sim.faults import FAULTS
from tests.support.sim import sim

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
SEEN_ELSEWHERE = {"deaf"}  # tests/contract/test_sim_server.py


class Answer:
    """What came over the wire: status, headers, decoded chunks, and how the connection ended."""

    def __init__(self, raw, *, reset=False, still_open=False):
        head, _, self.body = raw.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.raw = raw
        self.status = int(lines[0].split(" ")[1]) if raw else None
        self.headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        self.reset = reset
        self.open = still_open
        chunked = self.headers.get("transfer-encoding") == "chunked"
        self.chunks, self.complete = _chunks(self.body) if chunked else ([self.body], True)
        if not chunked and "content-length" in self.headers:
            self.complete = len(self.body) == int(self.headers["content-length"])

    @property
    def text(self):
        return b"".join(self.chunks)

    def frames(self, end=b"\n\n"):
        return [frame for frame in self.text.split(end) if frame]

    def events(self):
        return [
            msgspec.json.decode(frame.removeprefix(b"data: ")) for frame in self.frames() if frame != b"data: [DONE]"
        ]

    def tokens(self):
        return sum(bool(choice["delta"].get("content")) for event in self.events() for choice in event["choices"])


def _chunks(body):
    """The HTTP chunks, and whether the last one (empty) came."""
    chunks = []
    while body:
        size, found, rest = body.partition(b"\r\n")
        if not found:
            return chunks, False
        length = int(size, 16)
        if length == 0:
            return chunks, rest == b"\r\n"
        chunks.append(rest[:length])
        body = rest[length + 2 :]
    return chunks, False


async def ask(fault, *, stream=True, seconds=1.0, header=True, dialect="vllm", **body):
    """One request on a raw connection that is read until it ends, or until `seconds` have passed."""
    options = {} if header else {"fault": fault}
    async with sim(dialect=dialect, **options) as handle:
        reader, writer = await asyncio.open_connection(*handle.address)
        data = msgspec.json.encode(HELLO | {"stream": stream} | body)
        order = f"x-sim-fault: {fault}\r\n" if header else ""
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\n{order}content-length: {len(data)}\r\n\r\n".encode() + data
        )
        raw = b""
        try:
            async with asyncio.timeout(seconds):
                while piece := await reader.read(65536):
                    raw += piece
                    if raw.endswith((b"\r\n0\r\n\r\n", b'"code":500}}')) and "close" not in fault:
                        break
            return Answer(raw)
        except TimeoutError:
            return Answer(raw, still_open=True)
        except ConnectionResetError:
            return Answer(raw, reset=True)
        finally:
            writer.close()


async def test_without_a_fault_all_is_well():
    answer = await ask("")
    assert answer.complete
    assert answer.tokens() == 8
    assert answer.frames()[-1] == b"data: [DONE]"


async def test_429_has_retry_after():
    answer = await ask("429:30", seconds=0.2)
    assert answer.status == 429
    assert answer.headers["retry-after"] == "30"
    assert msgspec.json.decode(answer.body)["error"]["code"] == 429


@pytest.mark.parametrize("status", [500, 503])
async def test_other_refusals(status):
    answer = await ask(str(status), seconds=0.2)
    assert answer.status == status
    assert "retry-after" not in answer.headers


async def test_hang_up_is_not_one_byte():
    assert (await ask("hang-up")).raw == b""


async def test_slow_holds_the_head_back():
    assert (await ask("slow:5", seconds=0.15)).raw == b""
    assert (await ask("slow:0.05")).complete


async def test_slow_body_sends_the_head_first():
    answer = await ask("slow-body:5", seconds=0.15)
    assert answer.status == 200
    assert answer.text == b""
    assert (await ask("slow-body:0.05", stream=False, seconds=0.3)).complete


async def test_cut_ends_between_two_events():
    answer = await ask("cut:3")
    assert answer.tokens() == 3
    assert not answer.complete
    assert answer.text.endswith(b"\n\n")


async def test_cut_inside_ends_in_the_middle_of_an_event():
    answer = await ask("cut-inside:3")
    assert not answer.complete
    assert not answer.text.endswith(b"\n")
    assert answer.frames()[-1].startswith(b"data: {")


async def test_reset_is_an_rst():
    answer = await ask("reset:3")
    assert answer.reset
    assert answer.tokens() == 3


async def test_silence_keeps_the_connection_open():
    answer = await ask("silence:3", seconds=0.3)
    assert answer.open
    assert answer.tokens() == 3


async def test_an_error_event_ends_the_stream():
    answer = await ask("error-event:3")
    assert answer.events()[-1]["error"]["message"] == "The engine has died."
    assert not answer.complete
    assert b"[DONE]" not in answer.text


async def test_malformed_is_one_event_among_good_ones():
    answer = await ask("malformed:3")
    bad = 0
    for frame in answer.frames()[:-1]:
        try:
            msgspec.json.decode(frame.removeprefix(b"data: "))
        except msgspec.DecodeError:
            bad += 1
    assert bad == 1
    assert answer.complete
    assert answer.frames()[-1] == b"data: [DONE]"


async def test_split_is_one_byte_a_chunk():
    answer = await ask("split", max_tokens=2, seconds=5)
    assert {len(chunk) for chunk in answer.chunks} == {1}
    assert answer.tokens() == 2
    assert answer.complete


async def test_split_codepoint_ends_chunks_inside_characters():
    answer = await ask("split-codepoint")
    broken = 0
    for chunk in answer.chunks:
        try:
            chunk.decode()
        except UnicodeDecodeError:
            broken += 1
    assert broken >= 2
    assert answer.tokens() == 8  # whole again when joined


async def test_no_done():
    answer = await ask("no-done")
    assert answer.complete
    assert b"[DONE]" not in answer.text
    assert answer.events()[-1]["choices"][0]["finish_reason"] == "length"


WITH_USAGE = {"stream_options": {"include_usage": True}}


async def test_no_usage():
    assert "usage" in (await ask("", **WITH_USAGE)).events()[-1]
    assert not any("usage" in event for event in (await ask("no-usage", **WITH_USAGE)).events())
    assert b"usage" not in (await ask("no-usage", stream=False, seconds=0.2)).body


async def test_usage_on_a_choice():
    *others, last = (await ask("usage-on-choice", **WITH_USAGE)).events()
    assert last["usage"]["completion_tokens"] == 8
    assert last["choices"][0]["finish_reason"] == "length"
    assert not any("usage" in event for event in others)


async def test_role_chunks_to_order():
    first = (await ask("role-only", dialect="tgi")).events()[0]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    first = (await ask("no-role")).events()[0]
    assert first["choices"][0]["delta"]["content"]


async def test_full_text_repeats_itself():
    plain = [event["choices"][0]["delta"]["content"] for event in (await ask("no-role")).events()]
    full = [event["choices"][0]["delta"]["content"] for event in (await ask("full-text,no-role")).events()]
    assert full == ["".join(plain[: at + 1]) for at in range(8)]


async def test_close_comes_after_a_complete_answer_without_a_word():
    answer = await ask("close")
    assert answer.complete
    assert not answer.open
    assert "connection" not in answer.headers


@pytest.mark.parametrize("stream", [True, False])
async def test_gzip(stream):
    answer = await ask("gzip", stream=stream)
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.complete
    assert b"choices" in gzip.decompress(answer.text)
    if stream:
        assert len(answer.chunks) > 8  # flushed with each event


async def test_odd_framings():
    assert (await ask("comments")).text.startswith(b": PROCESSING\n\ndata: ")
    crlf = await ask("crlf")
    assert crlf.frames(b"\r\n\r\n")[-1] == b"data: [DONE]"
    assert (await ask("no-space")).text.startswith(b"data:{")
    assert b"data: " not in (await ask("no-space")).text


async def test_separators_stand_inside_the_text():
    words = (await ask("separators")).text.decode()
    assert words.count("\x85\u2028\u2029") == 8


@pytest.mark.parametrize("fault", ["cut", "cut-inside", "reset", "error-event"])
async def test_a_whole_answer_is_cut_in_half(fault):
    answer = await ask(fault, stream=False)
    assert answer.status == 200
    assert not answer.complete
    assert answer.body


async def test_a_whole_answer_goes_silent_half_way():
    answer = await ask("silence", stream=False, seconds=0.2)
    assert answer.open
    assert not answer.complete


async def test_a_whole_answer_that_is_no_json():
    answer = await ask("malformed", stream=False, seconds=0.2)
    assert answer.complete
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(answer.body)


async def test_a_fault_can_be_ordered_for_all_and_by_body():
    assert (await ask("429", header=False, seconds=0.2)).status == 429
    assert (await ask("", header=True, sim_fault="503", seconds=0.2)).status == 200  # the header counts first
    async with sim() as handle:
        reader, writer = await asyncio.open_connection(*handle.address)
        data = msgspec.json.encode(HELLO | {"sim_fault": "503"})
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        assert (await reader.readline()).startswith(b"HTTP/1.1 503")
        writer.close()


async def test_faults_can_be_changed_while_it_runs():
    async with sim() as handle:

        async def order(fault):
            reader, writer = await asyncio.open_connection(*handle.address)
            writer.write(
                f"PUT /sim/fault HTTP/1.1\r\nconnection: close\r\ncontent-length: {len(fault)}\r\n\r\n{fault}".encode()
            )
            status = int((await reader.read()).split(b" ")[1])
            writer.close()
            return status

        assert await order("cut:2,no-done") == 200
        assert handle.state()["fault"] == "cut:2,no-done"
        assert await order("nonsense") == 400
        assert handle.state()["fault"] == "cut:2,no-done"
        assert await order("") == 200
        assert handle.state()["fault"] == ""


async def test_an_unknown_fault_is_refused():
    assert (await ask("nonsense", seconds=0.2)).status == 400


async def test_a_fault_of_ours_is_not_a_client_that_left():
    async with sim() as handle:
        reader, writer = await asyncio.open_connection(*handle.address)
        data = msgspec.json.encode(HELLO | {"stream": True, "sim_fault": "cut:2"})
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await reader.read()
        writer.close()
        await handle.until(running=0, kv_held=0, connections=0)
        assert handle.state()["cancelled"] == 0
        assert handle.requests[0]["ended"] == "dropped"


def test_every_fault_has_been_seen_here():
    code = Path(__file__).read_text()
    assert [name for name in FAULTS if f'"{name}' not in code and name not in SEEN_ELSEWHERE | {"500", "503"}] == []
