"""The OpenAI-compatible routes that generate: chat completions, completions, embeddings."""

import time
from collections.abc import Callable
from typing import cast

from litestar import asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send

from backends.types import PATHS, Operation
from gateway.api.relay import relay, send_error
from gateway.serve.errors import BadRequest, GatewayError, MethodNotAllowed, TooLarge
from gateway.serve.pipeline import Ask, Pipeline
from gateway.serve.trail import Trail

NewId = Callable[[], str]
NewTrace = Callable[[str | None, str | None], dict[str, str]]
"""(traceparent, tracestate) as they came -> the headers to pass on."""


class Generate:
    """One generating route as an ASGI application: read the body, answer, watch for the client leaving."""

    def __init__(
        self, operation: Operation, pipeline: Pipeline, *, max_body: int, new_id: NewId, new_trace: NewTrace
    ) -> None:
        self._operation: Operation = operation
        self._pipeline = pipeline
        self._max_body = max_body
        self._new_id = new_id
        self._new_trace = new_trace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        trail = Trail(self._new_id(), self._operation, time.time(), time.perf_counter)
        try:
            ask = await self._ask(cast("str", scope["method"]), headers, receive)
        except GatewayError as error:
            await send_error(error, trail.headers(), send)
            return
        if ask is None:
            return  # the client left before its request was whole
        trail.traceparent = ask.headers.get("traceparent", "")
        await relay(self._pipeline.answer(ask, trail), trail, receive, send)

    async def _ask(self, method: str, headers: dict[bytes, bytes], receive: Receive) -> Ask | None:
        if method != "POST":
            raise MethodNotAllowed(f"Use POST, not {method}.")
        raw = await read_body(receive, self._max_body, headers.get(b"content-length"))
        if raw is None:
            return None
        authorization = headers.get(b"authorization")
        return Ask(
            self._operation,
            authorization.decode("latin-1") if authorization is not None else None,
            raw,
            compress=_wants_compression(headers.get(b"x-turnout-compress")),
            headers=self._new_trace(_text(headers.get(b"traceparent")), _text(headers.get(b"tracestate"))),
        )


def _text(value: bytes | None) -> str | None:
    return value.decode("latin-1") if value is not None else None


def _wants_compression(value: bytes | None) -> bool:
    if value is None or value == b"lossless":
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


def generating_routes(
    pipeline: Pipeline, *, max_body: int, new_id: NewId, new_trace: NewTrace
) -> list[ASGIRouteHandler]:
    def handler(operation: Operation) -> ASGIRouteHandler:
        generate = Generate(operation, pipeline, max_body=max_body, new_id=new_id, new_trace=new_trace)

        async def route(scope: Scope, receive: Receive, send: Send) -> None:
            await generate(scope, receive, send)

        return asgi(PATHS[operation], name=operation, copy_scope=False)(route)

    operations: tuple[Operation, ...] = ("chat", "completions", "embeddings")
    return [handler(operation) for operation in operations]
