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

DOCUMENT_LIMIT: Final = 256 * 1024 * 1024  # bytes of an answer that is no stream: it is held until it is whole
_LOOKED_AT: Final = 64 * 1024  # bytes of an answer without usage that are read to find out what it is
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
    size = 0
    try:
        async for piece in streamed(server, body, sieve):
            size += len(piece)
            _check_size(server, size)
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
    except (msgspec.MsgspecError, RecursionError):  # [DONE], or an event the sieve has counted as malformed
        return None
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else None


async def document(server: str, body: AsyncIterator[bytes], meter: Meter) -> bytes:
    """A JSON answer, whole, so that one that is none is never passed on as an answer. It has no first token.

    Raises as `begun` does until the first byte, then Interrupted; Broken for what is no JSON object (the page of some
    proxy); Refused or Overloaded for an error that came with a status of success.
    """
    pieces = [await begun(server, anext(body))]
    size = len(pieces[0])
    meter.chunk(size, token=False)
    async for piece in body:
        size += len(piece)
        _check_size(server, size)
        meter.chunk(len(piece), token=False)
        pieces.append(piece)
    whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    meter.usage = usage_of_document([whole])
    _check_document(server, whole, has_usage=meter.usage is not None)
    meter.finished = True
    return whole


class _Doubtful(msgspec.Struct):
    """What tells an error from an answer that says nothing of usage."""

    error: object = None
    kind: object = msgspec.field(default=None, name="object")
    choices: msgspec.Raw = msgspec.Raw()
    data: msgspec.Raw = msgspec.Raw()


def _check_document(server: str, whole: bytes, *, has_usage: bool) -> None:
    looks = whole[:64].lstrip().startswith(b"{") and whole[-64:].rstrip().endswith(b"}")
    if looks and (has_usage or len(whole) > _LOOKED_AT):
        return
    try:
        found = msgspec.json.decode(whole, type=_Doubtful) if looks else None
    except RecursionError:  # too deep for us, and not ours to judge
        return
    except msgspec.MsgspecError:
        found = None
    if found is None:
        raise Broken(f"{server}: answered with something other than a JSON object", was_idle=False)
    if (found.error or found.kind == "error") and not (bytes(found.choices) or bytes(found.data)):
        raise refusal_in_stream(whole, server=server)


def _check_size(server: str, size: int) -> None:
    if size > DOCUMENT_LIMIT:
        raise Interrupted(f"{server}: an answer of more than {DOCUMENT_LIMIT} bytes")


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
