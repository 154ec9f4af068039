"""A server of plain sockets, for tests in which every byte and every moment counts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext


class Request:
    """What a client sent: the request line, lower-case headers, the body."""

    def __init__(self, line: str, headers: dict[str, str], body: bytes) -> None:
        self.line = line
        self.headers = headers
        self.body = body


class Peer:
    """One connection, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number  # counts the server's connections from 0

    async def request(self) -> Request | None:
        """The next request; None: the client has closed."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        line, *fields = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Request(line, headers, body)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the client has closed its end."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


Script = Callable[[Peer], Awaitable[None]]


class RawServer:
    def __init__(self, port: int, scheme: str) -> None:
        self.port = port
        self.url = f"{scheme}://127.0.0.1:{port}"
        self.connections = 0
        self.open = 0
        self.requests: list[Request] = []


@asynccontextmanager
async def raw_server(script: Script, *, ssl: SSLContext | None = None) -> AsyncIterator[RawServer]:
    """Run `script` for each connection; when it returns the connection is closed."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        peer = Peer(reader, writer, found.connections)
        found.connections += 1
        found.open += 1
        try:
            await script(peer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            found.open -= 1
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(run, "127.0.0.1", 0, ssl=ssl)
    found = RawServer(server.sockets[0].getsockname()[1], "https" if ssl else "http")
    try:
        yield found
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def answer(body: bytes = b"{}", *, status: str = "200 OK", **headers: str) -> bytes:
    """A whole response with a content-length; header names with `_` for `-`."""
    named = {"content-type": "application/json", **{n.replace("_", "-"): v for n, v in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status}\r\n{lines}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)
