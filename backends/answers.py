"""The ways an answer goes back: a stream as it is, a stream put together, a document as it is."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from typing import Final, cast

import msgspec
from typing_extensions import override

from backends.assemble import Assembly
from backends.errors import BackendError, Broken, Interrupted, Stalled, TimedOut
from backends.refusals import refusal_in_stream
from backends.sse import Sieve, data_of, split_events
from backends.usage import usage_of_document
from telemetry.usage import Meter

KEPT_LIMIT: Final = 64 * 1024 * 1024  # bytes of a JSON answer that are kept to find its usage
_AFTER_DONE: Final = 0.5  # seconds that a server gets to end its body after [DONE]


async def streamed(server: str, body: AsyncIterator[bytes], sieve: Sieve) -> AsyncGenerator[bytes]:
    """Whole events for the client. The first piece holds the first event with data; comments before it wait for it.

    Raises `Refused` or `Overloaded` where that event is an error, and at the end, when every byte has been passed on,
    `Interrupted` where the answer is not whole.
    """
    held = b""
    cut: Interrupted | None = None
    try:
        async for chunk in body:
            out = sieve.feed(chunk)
            if held or not sieve.spoken:
                held += out
                out, held = (held, b"") if sieve.spoken else (b"", held)
            if sieve.refused is not None:
                raise refusal_in_stream(sieve.refused, server=server)
            if out:
                yield out
            if sieve.done:
                await _until_end(body)
                break
    except Interrupted as error:
        cut = error
    out = held + sieve.end()
    if sieve.refused is not None:
        raise refusal_in_stream(sieve.refused, server=server)
    if not sieve.spoken:
        raise cut or Interrupted(f"{server}: the stream ended without a single event")
    if out:
        yield out
    verdict(server, sieve, cut)


def verdict(server: str, sieve: Sieve, cut: Interrupted | None) -> None:
    """Say what was wrong with a stream that has ended. Raises Interrupted."""
    if sieve.error is not None:
        raise Interrupted(f"{server}: the stream ended with an error of the server's own", told=True) from cut
    if sieve.complete():
        return  # cut or not: the client has it all
    if cut is not None:
        raise cut
    raise Interrupted(f"{server}: the stream ended without a terminal frame")


async def _until_end(body: AsyncIterator[bytes]) -> None:
    """After [DONE] nothing counts but the end of the body, which lets the connection be used again."""
    with suppress(BackendError, TimeoutError):
        async with asyncio.timeout(_AFTER_DONE):
            async for _ in body:
                pass


async def assembled(server: str, body: AsyncIterator[bytes], sieve: Sieve) -> bytes:
    """One JSON document from a stream. Raises as `streamed` does; an error event anywhere is the answer's error."""
    assembly = Assembly()
    try:
        async for piece in streamed(server, body, sieve):
            for event in split_events(piece):
                if (chunk := _json_object(data_of(event))) is not None:
                    assembly.add(chunk)
    except Interrupted:
        if sieve.error is not None:
            raise refusal_in_stream(sieve.error, server=server) from None
        raise
    return assembly.document()


def _json_object(data: bytes | None) -> Mapping[str, object] | None:
    if data is None:
        return None
    try:
        value = cast("object", msgspec.json.decode(data))
    except msgspec.MsgspecError:  # [DONE], or an event the sieve has counted as malformed
        return None
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else None


async def document(body: AsyncIterator[bytes], meter: Meter) -> AsyncGenerator[bytes]:
    """A JSON answer as it comes; its usage is read at its end. It has no first token: all of them come at once."""
    kept: list[bytes] = []
    size = 0
    async for piece in body:
        size += len(piece)
        meter.chunk(len(piece), token=False)
        if size <= KEPT_LIMIT:
            kept.append(piece)
        yield piece
    meter.usage = usage_of_document(kept) if size <= KEPT_LIMIT else None
    meter.finished = True


class Opened(AsyncIterator[bytes]):
    """A body whose first piece has been waited for."""

    __slots__ = ("_first", "_rest")

    def __init__(self, first: bytes, rest: AsyncIterator[bytes] | None = None) -> None:
        self._first: bytes | None = first
        self._rest = rest

    @override
    async def __anext__(self) -> bytes:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._rest is None:
            raise StopAsyncIteration
        return await anext(self._rest)


async def begun(server: str, first: Awaitable[bytes]) -> bytes:
    """Wait for the first piece. Nothing has gone to the client yet, so what breaks here is told as never begun."""
    try:
        return await first
    except StopAsyncIteration:
        raise Broken(f"{server}: an empty answer", was_idle=False) from None
    except Stalled as error:
        raise TimedOut(str(error)) from error
    except Interrupted as error:
        raise Broken(str(error), was_idle=False) from error
