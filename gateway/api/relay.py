"""Sending an answer: the request's whole life happens inside one `async with`, and ends when the client leaves."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final

import msgspec
from litestar.types import Send

from backends.errors import Broken, Interrupted, TimedOut, Unreachable
from backends.types import Reply
from gateway.api.departure import Departure, Presence
from gateway.serve.errors import GatewayError, StreamIncomplete
from gateway.serve.trail import Trail

Headers = list[tuple[bytes, bytes]]

_log = logging.getLogger("turnout.api")
LAST_WORDS: Final = 0.5  # seconds that a client gets to take the event that says its stream is cut
_OURS: Final = (Unreachable, Broken, TimedOut, Interrupted)  # told in our words: a server's own may repeat a prompt
_STREAM: Final = "text/event-stream"
_BROKE_OFF: Final = "The model server broke off its answer: what came is not whole."


async def relay(answer: AbstractAsyncContextManager[Reply], trail: Trail, client: Departure, send: Send) -> None:
    """Open the reply, pass its bytes on, and always close it. Errors before the head become JSON with their status."""
    try:
        with Presence(client) as presence:
            async with answer as reply:
                await _pass_on(reply, trail, send, presence)
    except GatewayError as error:
        if isinstance(error.__cause__, _OURS):
            _log.warning("request %s: %s", trail.id, error.__cause__)
        await send_error(error, trail.headers(), send)
    except Exception:  # noqa: BLE001  the last boundary: whatever it is, the client gets an answer and the log the cause
        _log.exception("request %s failed inside the gateway", trail.id)
        await send_error(GatewayError("The gateway failed; see its log."), trail.headers(), send)


async def _pass_on(reply: Reply, trail: Trail, send: Send, presence: Presence) -> None:
    kind = reply.headers.get("content-type", "application/json")
    if kind.startswith(_STREAM):
        await _stream(reply, trail, send, presence)
        return
    # A whole document is sent whole: if the server breaks off, the client still gets a true status.
    try:
        body = b"".join([chunk async for chunk in reply.body])
    except Interrupted as error:
        raise StreamIncomplete(_BROKE_OFF) from error
    head = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body)), *trail.headers()]
    await send({"type": "http.response.start", "status": reply.status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _stream(reply: Reply, trail: Trail, send: Send, presence: Presence) -> None:
    head = [(b"content-type", reply.headers["content-type"].encode()), (b"cache-control", b"no-cache")]
    head += [(b"x-accel-buffering", b"no"), *trail.headers()]
    await send({"type": "http.response.start", "status": reply.status, "headers": head})
    try:
        async for chunk in reply.body:
            presence.began()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            presence.ended()
    except Interrupted as error:
        _log.warning("request %s: %s", trail.id, error)
        if not error.told:  # else the server's own error event has gone out already
            await send({"type": "http.response.body", "body": _farewell(), "more_body": True})
    except asyncio.CancelledError:  # the gateway is leaving, or the client has left: then this goes nowhere
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await send({"type": "http.response.body", "body": _farewell(), "more_body": False})
        raise
    except Exception:  # noqa: BLE001  the head has gone, so all that can be told is that this is not the whole
        _log.exception("request %s failed inside the gateway", trail.id)
        await send({"type": "http.response.body", "body": _farewell(), "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _farewell() -> bytes:
    return b"data: " + msgspec.json.encode(StreamIncomplete(_BROKE_OFF).body) + b"\n\n"


async def send_error(error: GatewayError, headers: Iterable[tuple[bytes, bytes]], send: Send) -> None:
    body = msgspec.json.encode(error.body)
    head: Headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    head += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})
