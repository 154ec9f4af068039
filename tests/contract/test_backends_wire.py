"""The HTTP client against servers of plain sockets: what is sent, which connections are used, what is left behind."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import uvloop

from backends.errors import BackendError, Broken, Interrupted, Overloaded, TimedOut, Unreachable
from backends.keepalive import Stats
from backends.transport import Upstream
from backends.types import Access
from backends.wire import WireUpstream
from tests.support.raw_server import LAST_CHUNK, STREAM_HEAD, Peer, RawServer, answer, chunk, raw_server
from tests.support.wire import IDLE, NONE, ask, endless, once, post, says, settles, whole

# --- what is sent ---


async def test_the_request_is_what_was_asked(upstream: Upstream) -> None:
    seen = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.send(answer(b'{"ok":1}'))

    async with (
        raw_server(script) as server,
        upstream.post(
            f"{server.url}/v1/chat/completions?a=b",
            {"content-type": "application/json", "traceparent": "00-1-2-01"},
            b'{"x":"\xe4\xbd\xa0"}',
            access=Access(key="sk-secret"),
            first_byte_timeout=2,
            idle_timeout=2,
        ) as reply,
    ):
        assert await whole(reply) == b'{"ok":1}'
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    [request] = seen
    assert request.line == "POST /v1/chat/completions?a=b HTTP/1.1"
    assert request.body == b'{"x":"\xe4\xbd\xa0"}'
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["authorization"] == "Bearer sk-secret"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["traceparent"] == "00-1-2-01"
    assert request.headers["content-length"] == str(len(request.body))


async def test_get_fetches_a_small_document(upstream: Upstream) -> None:
    async with raw_server(says(answer(b"metrics 1\n", status="503 Down", x_a="b"))) as server:
        found = await upstream.get(f"{server.url}/metrics", {}, access=Access(), timeout=2)
    assert (found.status, found.body, found.headers["x-a"]) == (503, b"metrics 1\n", "b")


async def test_get_has_one_deadline_for_all_of_it(upstream: Upstream) -> None:
    async def drips(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while True:
            await peer.send(b"x")
            await asyncio.sleep(0.02)

    async with raw_server(drips) as server:
        with pytest.raises(TimedOut):
            await upstream.get(server.url, {}, access=Access(), timeout=0.2)


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\nb", "a\rb", "a\0b"])
def test_a_header_cannot_break_out_of_its_line(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        post(WireUpstream(), "http://127.0.0.1:1", traceparent=value)


@pytest.mark.parametrize(
    "url",
    ["ftp://h/", "h:80", "http://", "http://h:99999", "http://u:p@h", "http://h/a b", "http://h/\r\nx", "http://é/"],
)
async def test_an_impossible_url_is_unreachable(wire: WireUpstream, url: str) -> None:
    with pytest.raises(Unreachable):
        await wire.get(url, {}, access=Access(), timeout=1)


# --- connections ---


async def test_a_connection_is_used_again(wire: WireUpstream) -> None:
    async with raw_server(says(answer())) as server:
        for _ in range(5):
            assert await ask(wire, server.url) == b"{}"
            assert wire.stats() == IDLE
        assert server.connections == 1


async def test_several_at_once_have_a_connection_each(wire: WireUpstream) -> None:
    async with raw_server(says(answer())) as server:
        await asyncio.gather(*(ask(wire, server.url) for _ in range(10)))
        assert wire.stats() == Stats(open=10, idle=10, in_use=0)


@pytest.mark.parametrize("data", [answer(connection="close"), b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}"])
async def test_a_server_that_will_close_is_not_asked_again(wire: WireUpstream, data: bytes) -> None:
    async with raw_server(says(data)) as server:
        for turn in range(1, 4):
            assert await ask(wire, server.url) == b"{}"
            assert wire.stats() == NONE
            assert server.connections == turn


async def test_a_request_that_closes_does_close(wire: WireUpstream) -> None:
    async with raw_server(says(answer())) as server:
        async with post(wire, server.url, connection="close") as reply:
            assert await whole(reply) == b"{}"
        assert wire.stats() == NONE
        await settles(lambda: server.open == 0)


async def test_what_comes_unasked_closes_the_connection(wire: WireUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer())
        await asyncio.sleep(0.02)
        await peer.send(answer(b"late", status="408 Request Timeout"))
        await peer.gone()

    async with raw_server(script) as server:
        await ask(wire, server.url)
        await settles(lambda: wire.stats() == NONE)
        assert await ask(wire, server.url) == b"{}"


async def test_an_answer_too_many_in_one_read(wire: WireUpstream) -> None:
    async with raw_server(says(answer(b"one") + answer(b"two"))) as server:
        assert await ask(wire, server.url) == b"one"
        assert wire.stats() == NONE
        assert await ask(wire, server.url) == b"one"


async def test_a_connection_that_died_in_the_pool_is_forgotten(wire: WireUpstream) -> None:
    async with raw_server(once(answer())) as server:
        await ask(wire, server.url)
        await settles(lambda: wire.stats() == NONE)
        await ask(wire, server.url)
        assert server.connections == 2


async def test_the_keep_alive_race_is_run_once_more(wire: WireUpstream) -> None:
    """The server closes as the second request arrives: nothing came back, so it is sent again on a new connection."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer())
        if peer.number == 0:
            await peer.request()  # read, and closed without a word
        else:
            await peer.request()
            await peer.send(answer(b"again"))

    async with raw_server(script) as server:
        await ask(wire, server.url)
        assert await ask(wire, server.url) == b"{}"
        assert server.connections == 2


async def test_the_race_is_not_run_twice(wire: WireUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 0:
            await peer.send(answer())
            await peer.request()

    async with raw_server(script) as server:
        await ask(wire, server.url)
        with pytest.raises(Broken) as caught:
            await ask(wire, server.url)
        assert not caught.value.retryable
        assert server.connections == 2


async def test_a_request_that_was_begun_is_not_sent_again(wire: WireUpstream) -> None:
    """One byte of an answer is enough to know that the server had started."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer())
        await peer.request()
        await peer.send(b"H")

    async with raw_server(script) as server:
        await ask(wire, server.url)
        with pytest.raises(Broken) as caught:
            await ask(wire, server.url)
        assert not caught.value.retryable
        assert server.connections == 1


async def test_a_late_death_is_no_race(wire: WireUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that crashes while it works must not be given the same work again."""
    monkeypatch.setattr("backends.connection.RACE_SECONDS", 0.05)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer())
        await peer.request()
        await asyncio.sleep(0.1)

    async with raw_server(script) as server:
        await ask(wire, server.url)
        with pytest.raises(Broken):
            await ask(wire, server.url)
        assert server.connections == 1


async def test_idle_connections_expire() -> None:
    wire = WireUpstream(keepalive_expiry=0.1)
    async with raw_server(says(answer())) as server:
        await ask(wire, server.url)
        assert wire.stats() == IDLE
        await settles(lambda: wire.stats() == NONE)
        await settles(lambda: server.open == 0)
        await ask(wire, server.url)
        assert server.connections == 2
    await wire.aclose()


async def test_connections_are_bounded() -> None:
    wire = WireUpstream(connections=2)
    async with raw_server(says(answer())) as server:
        async with post(wire, server.url) as one, post(wire, server.url) as two:
            assert (await whole(one), await whole(two)) == (b"{}", b"{}")
            with pytest.raises(Overloaded):
                await ask(wire, server.url)
        assert await ask(wire, server.url) == b"{}"
        assert wire.stats() == Stats(open=2, idle=2, in_use=0)
    await wire.aclose()


async def test_nothing_is_remembered_of_servers_that_are_gone(wire: WireUpstream) -> None:
    async with raw_server(once(answer())) as server:
        await ask(wire, server.url)
        await settles(lambda: wire.stats() == NONE)
    assert not wire._kept.by_origin()


async def test_closing_breaks_off_what_runs() -> None:
    wire = WireUpstream()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD + chunk(b"x"))
        await peer.gone()

    async with raw_server(script) as server, post(wire, server.url) as reply:
        await anext(reply.body)
        await wire.aclose()
        with pytest.raises(Interrupted, match="closed on this side"):
            await anext(reply.body)
        assert wire.stats() == NONE
        with pytest.raises(Unreachable, match="closed"):
            await ask(wire, server.url)


# --- leaving ---


async def test_leaving_closes_the_socket_at_once(upstream: Upstream) -> None:
    async with raw_server(endless) as server:
        async with post(upstream, server.url) as reply:
            await anext(reply.body)
            await anext(reply.body)
        if isinstance(upstream, WireUpstream):
            assert upstream.stats() == NONE
        await settles(lambda: server.open == 0)


async def test_leaving_before_the_head_closes_the_socket_at_once(upstream: Upstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async with raw_server(script) as server:
        task = asyncio.ensure_future(ask(upstream, server.url))
        await settles(lambda: server.open == 1)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if isinstance(upstream, WireUpstream):
            assert upstream.stats() == NONE
        await settles(lambda: server.open == 0)


async def test_a_body_that_was_left_cannot_be_read(wire: WireUpstream) -> None:
    """Its connection may be carrying another request by then."""
    async with raw_server(says(answer())) as server:
        async with post(wire, server.url) as reply:
            pass
        with pytest.raises(Interrupted, match="left"):
            await anext(reply.body)


async def test_an_unread_but_finished_answer_leaves_a_usable_connection(wire: WireUpstream) -> None:
    async with raw_server(says(answer())) as server:
        for _ in range(3):
            async with post(wire, server.url):
                pass
        assert server.connections == 1
        assert wire.stats() == IDLE


async def test_a_slow_reader_holds_the_server_back(wire: WireUpstream) -> None:
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        peer.writer.transport.set_write_buffer_limits(high=0)
        await peer.send(STREAM_HEAD)
        for _ in range(400):
            await peer.send(chunk(b"x" * 100_000))
            sent += 100_000
        await peer.send(LAST_CHUNK)
        await peer.gone()

    async with raw_server(script) as server, post(wire, server.url) as reply:
        size = len(await anext(reply.body))
        await asyncio.sleep(0.2)
        held, before = reply.body._connection._held, sent  # type: ignore[attr-defined]
        assert held <= 64 * 1024 + 256 * 1024
        await asyncio.sleep(0.1)
        assert sent == before < 40_000_000, "the server is still allowed to send"
        size += len(await whole(reply))
        assert size == 40_000_000


async def test_many_leave_and_nothing_is_left(wire: WireUpstream) -> None:
    async def leaves(server: RawServer, number: int) -> None:
        try:
            async with asyncio.timeout(0.002 * number), post(wire, server.url) as reply:
                async for _ in reply.body:
                    pass
        except (TimeoutError, BackendError):
            pass

    async with raw_server(endless) as server:
        await asyncio.gather(*(leaves(server, number) for number in range(40)))
        assert wire.stats().in_use == 0
        await settles(lambda: server.open == 0)
    assert {task for task in asyncio.all_tasks() if not task.done()} == {asyncio.current_task()}


# --- TLS, uvloop ---


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command")
    folder = tmp_path_factory.mktemp("tls")
    command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "crt")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    return folder / "crt", context


async def test_tls_believes_the_given_bundle_only(upstream: Upstream, certificate: tuple[Path, ssl.SSLContext]) -> None:
    ca, context = certificate
    async with raw_server(says(answer()), ssl=context) as server:
        for _ in range(2):
            found = await upstream.get(server.url, {}, access=Access(ca=str(ca)), timeout=2)
            assert found.body == b"{}"
        assert server.connections == 1
        with pytest.raises(Unreachable):
            await upstream.get(server.url, {}, access=Access(), timeout=2)
        with pytest.raises(Unreachable):
            await upstream.get(server.url, {}, access=Access(ca=str(ca.parent / "none")), timeout=2)


async def test_leaving_a_tls_stream_closes_it_at_once(
    wire: WireUpstream, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    ca, context = certificate
    async with raw_server(endless, ssl=context) as server:
        post = wire.post(server.url, {}, b"", access=Access(ca=str(ca)), first_byte_timeout=2, idle_timeout=2)
        async with post as reply:
            await anext(reply.body)
        await settles(lambda: server.open == 0)


def test_the_same_on_uvloop() -> None:
    """Gateways run on uvloop, the tests above on asyncio's own loop."""

    async def run() -> None:
        wire = WireUpstream(connect_timeout=0.5)
        async with raw_server(says(answer())) as server:
            assert await ask(wire, server.url) == b"{}"
            assert wire.stats() == IDLE
        with pytest.raises(Unreachable):
            await ask(wire, server.url)
        async with raw_server(endless) as server:
            async with post(wire, server.url) as reply:
                await anext(reply.body)
            await settles(lambda: server.open == 0)
        async with raw_server(once(STREAM_HEAD + chunk(b"x"))) as server:
            with pytest.raises(Interrupted):
                await ask(wire, server.url)

        async def silent(peer: Peer) -> None:
            await peer.request()
            await peer.gone()

        async with raw_server(silent) as server:
            with pytest.raises(TimedOut):
                await ask(wire, server.url, first=0.05)
        await wire.aclose()
        assert wire.stats() == NONE

    uvloop.run(run())
