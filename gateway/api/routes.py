"""The OpenAI-compatible routes that generate: chat completions, completions, embeddings."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, cast

import msgspec
from litestar import Litestar, asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send
from typing_extensions import override

from backends.types import PATHS, Operation
from gateway.api.departure import departure
from gateway.api.relay import relay, send_error
from gateway.serve.errors import BadRequest, GatewayError, MethodNotAllowed, TooLarge
from gateway.serve.pipeline import Ask, Pipeline
from gateway.serve.trail import Trail
from telemetry.trace import Trace

NewId = Callable[[], str]
NewTrace = Callable[[str | None, str | None], Trace]
"""The trace of a request from its traceparent and tracestate, as they came."""


class Inlet(msgspec.Struct, frozen=True):
    """How requests are taken in. `max_body`: bytes; `compress`: whether prompts may be shortened when nobody says."""

    max_body: int
    compress: bool
    new_id: NewId
    new_trace: NewTrace
    clock: Callable[[], float]


class Generate:
    """One generating route as an ASGI application: read the body, answer, watch for the client leaving."""

    def __init__(self, operation: Operation, pipeline: Pipeline, inlet: Inlet) -> None:
        self._operation: Operation = operation
        self._pipeline = pipeline
        self._inlet = inlet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = tuple(scope["headers"])
        headers = dict(sent)
        inlet = self._inlet
        trace = inlet.new_trace(_text(headers.get(b"traceparent")), _text(headers.get(b"tracestate")))
        trail = Trail(inlet.new_id(), self._operation, time.time(), inlet.clock, trace)
        try:
            if len(headers) < len(sent):
                check_single(sent)
            ask = await self._ask(cast("HTTPScope", scope)["method"], headers, receive)
        except GatewayError as error:
            await send_error(error, trail.headers(), send)
            return
        if ask is None:
            return  # the client left before its request was whole
        await relay(self._pipeline.answer(ask, trail), trail, departure(scope, receive), send)

    async def _ask(self, method: str, headers: dict[bytes, bytes], receive: Receive) -> Ask | None:
        if method != "POST":
            raise MethodNotAllowed(f"Use POST, not {method}.")
        raw = await read_body(receive, self._inlet.max_body, headers.get(b"content-length"))
        if raw is None:
            return None
        authorization = headers.get(b"authorization")
        return Ask(
            self._operation,
            authorization.decode("latin-1") if authorization is not None else None,
            raw,
            compress=_wants_compression(headers.get(b"x-turnout-compress"), self._inlet.compress),
        )


def check_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """A key that comes twice is refused: which of the two counts, every proxy on the way may see differently."""
    if sum(name == b"authorization" for name, _ in headers) > 1:
        raise BadRequest("The Authorization header was sent twice.", param="authorization")


def _text(value: bytes | None) -> str | None:
    return value.decode("latin-1") if value is not None else None


def _wants_compression(value: bytes | None, usual: bool) -> bool:  # noqa: FBT001
    if value is None:
        return usual
    if value == b"lossless":
        return True
    if value == b"off":
        return False
    raise BadRequest("x-turnout-compress is off or lossless.", param="x-turnout-compress")


async def read_body(receive: Receive, limit: int, declared: bytes | None) -> bytes | None:
    """The whole body; None if the client left. Raises TooLarge as soon as that is known."""
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise TooLarge(f"The body has {int(declared)} bytes; the gateway takes {limit}.")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = cast("bytes", message.get("body", b""))
        size += len(part)
        if size > limit:
            raise TooLarge(f"The body has more than the {limit} bytes the gateway takes.")
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


class Application(Litestar):
    """Litestar, with a short way to the routes that generate: they need nothing of its router and middleware."""

    __slots__ = ("_straight",)

    def straight_to(self, generating: Mapping[Operation, Generate]) -> Self:
        """Have requests of exactly these paths go to their routes at once."""
        self._straight: dict[str, ASGIApp] = {PATHS[operation]: route for operation, route in generating.items()}
        return self

    @override
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        straight = self._straight.get(scope.get("path", "")) if scope["type"] == "http" else None
        await (straight or super().__call__)(scope, receive, send)


def generating_routes(generating: Mapping[Operation, Generate]) -> list[ASGIRouteHandler]:
    return [_route(operation, generate) for operation, generate in generating.items()]


def _route(operation: Operation, generate: Generate) -> ASGIRouteHandler:
    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        await generate(scope, receive, send)

    return asgi(PATHS[operation], name=operation, copy_scope=False)(route)
