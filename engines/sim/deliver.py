"""Sending an answer, and doing to it on the way what was ordered."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from engines.sim.answers import Frame
from engines.sim.dialects import Dialect, Refused, stream_error
from engines.sim.faults import Faults
from engines.sim.wire import Wire

_STREAM_HEADERS: Final = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_BROKEN: Final = b'{"choices":[{"index":0,"delta":{"content":'


def prepare(wire: Wire, faults: Faults) -> None:
    """The faults that are about bytes and connections, whatever the answer."""
    wire.bytewise, wire.mid_codepoint = "split" in faults, "split-codepoint" in faults
    wire.gzip, wire.deaf = "gzip" in faults, "deaf" in faults


async def strike_early(wire: Wire, faults: Faults) -> bool:
    """The faults that happen before anything is computed; True: there will be no answer. Raises Refused."""
    slow = faults["slow"]
    if slow is not None:
        await asyncio.sleep(slow)
    refusal = faults.refusal()
    if refusal is not None:
        status, retry_after = refusal
        kind = "internal" if status == 500 else "overloaded"  # noqa: PLR2004  an HTTP status
        raise Refused(kind, f"Ordered: {faults.order}", status=status, retry_after=retry_after)
    if "hang-up" in faults:
        wire.drop()
    return wire.dropped


async def stream(wire: Wire, frames: AsyncIterator[Frame], faults: Faults, dialect: Dialect) -> None:
    """Send the events as they come, then the terminator."""
    sent = 0
    broken = False
    await _begin(wire, _STREAM_HEADERS, None, faults)
    async for frame in frames:
        data = event(msgspec.json.encode(frame.data), faults)
        if not broken and faults.strikes("malformed", sent, frame.tokens):
            broken, data = True, event(_BROKEN, faults)
        if await _strike(wire, data, faults, dialect, sent=sent, tokens=frame.tokens):
            return
        await wire.send(data)
        sent += frame.tokens
    if "no-done" not in faults:
        await wire.send(event(b"[DONE]", faults))
    await wire.end(close=dialect.closes_after_stream or "close" in faults)


async def whole(wire: Wire, body: Mapping[str, Any], faults: Faults) -> None:
    """Send an answer in one piece; the faults that cut a stream cut it in half."""
    data = msgspec.json.encode(body)
    if "malformed" in faults:
        data = data[:-2]
    await _begin(wire, {"content-type": "application/json"}, len(data), faults)
    if any(name in faults for name in ("silence", "cut", "cut-inside", "reset", "error-event")):
        await wire.send(data[: len(data) // 2])
        await _break_off(wire, faults)
        return
    await wire.send(data)
    await wire.end(close="close" in faults)


def event(data: bytes, faults: Faults) -> bytes:
    """One server-sent event, in the framing that was ordered."""
    end = b"\r\n" if "crlf" in faults else b"\n"
    comment = b": PROCESSING" + end + end if "comments" in faults else b""
    return comment + (b"data:" if "no-space" in faults else b"data: ") + data + end + end


async def _begin(wire: Wire, headers: Mapping[str, str], length: int | None, faults: Faults) -> None:
    wire.begin(200, headers, length)
    slow = faults["slow-body"]
    if slow is not None:
        await wire.flush()
        await asyncio.sleep(slow)


async def _strike(wire: Wire, data: bytes, faults: Faults, dialect: Dialect, *, sent: int, tokens: int) -> bool:
    """Whether one of the faults that end a stream happens in place of these bytes."""
    struck = [
        name for name in ("error-event", "cut-inside", "cut", "reset", "silence") if faults.strikes(name, sent, tokens)
    ]
    if not struck:
        return False
    if "error-event" in struck:
        await wire.send(event(msgspec.json.encode(stream_error(dialect, "The engine has died.")), faults))
    elif "cut-inside" in struck:
        await wire.send(data[: len(data) // 2])
    else:
        await wire.flush()
    await _break_off(wire, faults)
    return True


async def _break_off(wire: Wire, faults: Faults) -> None:
    if "silence" in faults:
        await asyncio.Event().wait()  # until the client leaves
    if "reset" in faults:
        await asyncio.sleep(0.02)  # an RST discards what the client has not read yet
    wire.drop(reset="reset" in faults)
