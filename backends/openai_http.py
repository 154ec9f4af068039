"""Any server that speaks the OpenAI protocol over HTTP; a `Dialect` says how it differs."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Final

import msgspec
from typing_extensions import override

from backends.answers import Opened, assembled, begun, document, streamed
from backends.dialect import OPENAI, Dialect, Prepared, prepare
from backends.errors import BackendError, Refused, Unreachable
from backends.metrics_text import read_load
from backends.refusals import refusal
from backends.sse import Sieve
from backends.transport import Document, RawReply, Upstream
from backends.types import PATHS, Call, Load, Replica, Reply
from telemetry.usage import Meter

ERROR_LIMIT: Final = 64 * 1024  # bytes of a server's error that are read
PROBE_TIMEOUT: Final = 5.0  # seconds
_JSON: Final = "application/json"
_SSE: Final = "text/event-stream; charset=utf-8"
_OK: Final = range(200, 300)
_UNAVAILABLE: Final = 503


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: tuple[_Model, ...]


class OpenAIHttp:
    """See `backends.types.Backend`. `now`: Unix time, for HTTP dates."""

    def __init__(
        self,
        upstream: Upstream,
        dialect: Dialect = OPENAI,
        *,
        now: Callable[[], float] = time.time,
        probe_timeout: float = PROBE_TIMEOUT,
    ) -> None:
        self._upstream = upstream
        self._dialect = dialect
        self._now = now
        self._probe_timeout = probe_timeout

    def send(self, replica: Replica, call: Call, meter: Meter) -> AbstractAsyncContextManager[Reply]:
        """Give the reply once its first event, or the first bytes of its document, are there."""
        prepared = prepare(call, self._dialect)
        headers = {"content-type": _JSON, **call.headers}
        if prepared.streams and self._dialect.closes_after_stream:
            headers["connection"] = "close"
        post = self._upstream.post(
            replica.url + PATHS[call.operation],
            headers,
            prepared.body,
            access=replica.access,
            first_byte_timeout=call.first_byte_timeout,
            idle_timeout=call.idle_timeout,
        )
        return _Exchange(replica.id, post, call, prepared, meter, self._now)

    async def probe(self, replica: Replica) -> Load | None:
        """Health first; load where the server publishes it (a server that does not is alive all the same)."""
        dialect = self._dialect
        health = await self._look(replica, dialect.health)
        if health.status == _UNAVAILABLE:
            return None
        if health.status in (401, 403):
            raise Unreachable(f"{replica.id}: the server did not accept the gateway's key")
        if health.status >= 500:  # noqa: PLR2004  a 404 is a server without this route: alive
            raise Unreachable(f"{replica.id}: {dialect.health} answered {health.status}")
        if dialect.metrics is None or dialect.names is None:
            return Load()
        try:
            metrics = await self._look(replica, dialect.metrics)
        except Unreachable:
            return Load()
        return read_load(metrics.body.decode("utf-8", "replace"), dialect.names) if metrics.status in _OK else Load()

    async def served_models(self, replica: Replica) -> tuple[str, ...]:
        """The ids of `/v1/models`. Raises Refused where the answer is no such list, and Unreachable."""
        answer = await self._look(replica, "/v1/models")
        if answer.status not in _OK:
            raise refusal(answer.status, answer.body, answer.headers, server=replica.id, now=self._now())
        try:
            models = msgspec.json.decode(answer.body, type=_Models)
        except msgspec.MsgspecError as error:
            raise Refused(f"{replica.id}: /v1/models is not a list of models: {error}", status=502) from error
        return tuple(model.id for model in models.data)

    async def _look(self, replica: Replica, path: str) -> Document:
        """Fetch something small. Raises Unreachable, whatever went wrong."""
        try:
            return await self._upstream.get(replica.url + path, {}, access=replica.access, timeout=self._probe_timeout)
        except Unreachable:
            raise
        except BackendError as error:
            raise Unreachable(str(error)) from error


class _Exchange(AbstractAsyncContextManager[Reply]):
    """One request and its answer. A class, because event loops keep a register of the generators that are open."""

    __slots__ = ("_call", "_meter", "_now", "_pieces", "_post", "_prepared", "_server")

    def __init__(
        self,
        server: str,
        post: AbstractAsyncContextManager[RawReply],
        call: Call,
        prepared: Prepared,
        meter: Meter,
        now: Callable[[], float],
    ) -> None:
        self._server = server
        self._post = post
        self._call = call
        self._prepared = prepared
        self._meter = meter
        self._now = now
        self._pieces: AsyncGenerator[bytes] | None = None  # of a stream that the client gets as it comes

    @override
    async def __aenter__(self) -> Reply:
        raw = await self._post.__aenter__()
        try:
            return await self._reply(raw)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise

    @override
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._pieces is not None:
                await self._pieces.aclose()
        finally:
            await self._post.__aexit__(kind, error, trace)

    async def _reply(self, raw: RawReply) -> Reply:
        server, prepared = self._server, self._prepared
        if raw.status not in _OK:
            raise refusal(raw.status, await _some(raw.body), raw.headers, server=server, now=self._now())
        if not _is_stream(raw, asked=prepared.streams):
            whole = await document(server, raw.body, self._meter)
            length = {"content-length": str(len(whole))}
            return Reply(raw.status, {"content-type": _JSON, **length, **_headers(raw)}, Opened(whole))
        sieve = Sieve(
            self._meter,
            strip_usage=prepared.strip_usage,
            strip_progress=prepared.strip_progress,
            choices=prepared.choices,
        )
        if not self._call.stream:
            whole = await begun(server, assembled(server, raw.body, sieve))
            return Reply(raw.status, {"content-type": _JSON, **_headers(raw)}, Opened(whole))
        pieces = self._pieces = streamed(server, raw.body, sieve)
        first = await begun(server, anext(pieces))
        return Reply(raw.status, {"content-type": _SSE, **_headers(raw)}, Opened(first, pieces))


def _is_stream(raw: RawReply, *, asked: bool) -> bool:
    """By what the server says it is; where it says nothing clear, by what it was asked for."""
    kind = raw.headers.get("content-type", "").lower()
    return kind.startswith("text/event-stream") or (asked and "json" not in kind)


def _headers(raw: RawReply) -> dict[str, str]:
    """The allow-list of what goes back to the client."""
    return {name: raw.headers[name] for name in ("x-request-id",) if name in raw.headers}


async def _some(body: AsyncIterator[bytes]) -> bytes:
    """The start of an error's body; if the server breaks off, what came before counts."""
    pieces: list[bytes] = []
    size = 0
    with suppress(BackendError):
        async for piece in body:
            pieces.append(piece)
            size += len(piece)
            if size >= ERROR_LIMIT:
                break
    return b"".join(pieces)[:ERROR_LIMIT]
