"""The routes that only tell: models, health, metrics, tokens, and what tests want to know."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from engines.sim import ask as asking
from engines.sim import metrics, text
from engines.sim.dialects import Refused, error_body, status_of
from engines.sim.machine import Machine, order_faults
from engines.sim.wire import Request, Wire


async def models(machine: Machine, _: Request, wire: Wire) -> None:
    options, dialect = machine.options, machine.dialect
    model: dict[str, Any] = {"id": options.model, "object": "model", "created": 0, "owned_by": dialect.owner}
    if dialect.name == "vllm":
        model["max_model_len"] = options.longest
    if dialect.name == "llamacpp":
        model["meta"] = {"n_ctx": options.longest, "n_ctx_train": options.longest}
    await _json(wire, {"object": "list", "data": [model]})


async def health(machine: Machine, _: Request, wire: Wire) -> None:
    if machine.dialect.name == "llamacpp":
        await _json(wire, {"status": "ok"})
    else:
        await _send(wire, b"", "text/plain")


async def metrics_page(machine: Machine, _: Request, wire: Wire) -> None:
    pages = {"vllm": metrics.vllm, "tgi": metrics.tgi, "llamacpp": metrics.llamacpp}
    page = pages[machine.dialect.name](machine.engine, machine.options)
    await _send(wire, page.encode(), "text/plain; version=0.0.4")


async def iterations(machine: Machine, _: Request, wire: Wire) -> None:
    """TensorRT-LLM's /metrics: JSON, and each entry is handed out once."""
    taken = list(machine.stats.iterations)
    machine.stats.iterations.clear()
    await _json(wire, taken)


async def prometheus(machine: Machine, _: Request, wire: Wire) -> None:
    """TensorRT-LLM's /prometheus/metrics."""
    await _send(wire, metrics.trtllm(machine.engine, machine.options).encode(), "text/plain; version=0.0.4")


async def kv_events(machine: Machine, _: Request, wire: Wire) -> None:
    await _json(wire, machine.events.poll())


async def version(_machine: Machine, _: Request, wire: Wire) -> None:
    await _json(wire, {"version": "0.0.0+sim"})


async def slots(machine: Machine, _: Request, wire: Wire) -> None:
    await _json(wire, list(metrics.slots(machine.engine, machine.options)))


async def about(machine: Machine, _: Request, wire: Wire) -> None:
    """TGI's /info."""
    longest = machine.options.longest
    told = {"model_id": machine.options.model, "max_concurrent_requests": machine.dialect.max_total}
    limits = {"max_input_tokens": longest - 1, "max_total_tokens": longest}
    await _json(wire, {**told, **limits, "router": "sim", "version": "0.0.0+sim"})


async def tokenize(machine: Machine, request: Request, wire: Wire) -> None:
    body = asking.decode(request.body)
    prompt = body.get("content") or body.get("prompt") or body.get("inputs") or ""
    if body.get("messages"):
        prompt = text.chat_prompt(body["messages"], body.get("tools"))
    tokens = list(text.tokenize(prompt))
    match machine.dialect.name:
        case "tgi":
            await _json(wire, _with_places(text.pieces(prompt), tokens))
        case "llamacpp":
            await _json(wire, {"tokens": tokens})
        case _:
            await _json(wire, {"count": len(tokens), "max_model_len": machine.options.longest, "tokens": tokens})


async def reset_cache(machine: Machine, _: Request, wire: Wire) -> None:
    """vLLM's development route: forget all prefixes."""
    await _json(wire, {"cleared": machine.engine.scheduler.cache.clear()})
    machine.events.flush(time.time())


async def set_fault(machine: Machine, request: Request, wire: Wire) -> None:
    """The fault for all requests from now on; an empty body takes it back."""
    machine.faults = order_faults(request.body.decode().strip())
    await _json(wire, {"fault": machine.faults.order})


async def state(machine: Machine, _: Request, wire: Wire) -> None:
    await _json(wire, machine.state())


async def refuse(machine: Machine, wire: Wire, refused: Refused) -> None:
    """An error, in the engine's own shape."""
    headers = {"retry-after": f"{refused.retry_after:g}"} if refused.retry_after is not None else {}
    data = msgspec.json.encode(error_body(machine.dialect, refused))
    if refused.kind == "key" and machine.dialect.name == "tgi":
        data = b""
    await _send(wire, data, "application/json", status_of(machine.dialect, refused), headers)


def _with_places(pieces: list[bytes], tokens: list[int]) -> list[dict[str, Any]]:
    """TGI's tokens, with their place in the text."""
    listed: list[dict[str, Any]] = []
    start = 0
    for piece, token in zip(pieces, tokens, strict=True):
        words = piece.decode("utf-8", "replace")
        listed.append({"id": token, "text": words, "start": start, "stop": start + len(words)})
        start += len(words)
    return listed


async def _json(wire: Wire, body: object) -> None:
    await _send(wire, msgspec.json.encode(body), "application/json")


async def _send(
    wire: Wire, data: bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    wire.begin(status, {"content-type": kind, **(headers or {})}, len(data))
    await wire.send(data)
    await wire.end()
