"""A client of the gateway made of plain sockets, for tests in which every byte counts."""

import asyncio
import json

from tests.support.gateway import KEY

HI = {"model": "small", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


def request(body, *extra, method="POST", path=CHAT, key=KEY):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {len(data)}", *extra]
    lines += [f"authorization: Bearer {key}"] if key else []
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


async def connect(handle):
    host, port = handle.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port), limit=1 << 20)


async def reply(reader):
    """One answer: status, headers, body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *fields = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
    return int(first.split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))


async def say(handle, *pieces):
    """Send these bytes on a connection of their own; what comes back first."""
    reader, writer = await connect(handle)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(5):
            return await reply(reader)
    finally:
        writer.close()


def small(server, **more):
    return {"small": {"url": server.url, "backend": "vllm", "model": "sim", "slots": 4, **more}}
