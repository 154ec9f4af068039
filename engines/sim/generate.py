"""The routes that compute: chat, completions, embeddings."""

import asyncio
import base64
import struct
import time
from collections.abc import Generator
from contextlib import aclosing, contextmanager
from typing import Any

import msgspec

from engines.sim import ask as asking
from engines.sim import deliver, text
from engines.sim.answers import Answer
from engines.sim.dialects import Frames, Refused
from engines.sim.faults import Faults
from engines.sim.machine import Machine
from engines.sim.scheduler import Job
from engines.sim.wire import Request, Wire


async def chat(machine: Machine, request: Request, wire: Wire) -> None:
    await _generate(machine, request, wire, chat=True)


async def completions(machine: Machine, request: Request, wire: Wire) -> None:
    await _generate(machine, request, wire, chat=False)


async def embeddings(machine: Machine, request: Request, wire: Wire) -> None:
    with _noted(machine, request, wire):
        body = asking.decode(request.body)
        if not machine.options.embeddings:
            kind = "unsupported" if machine.dialect.name == "llamacpp" else "invalid"
            raise Refused(kind, "This server does not support embeddings. Start it with `--embeddings`")
        faults = machine.faults_of(request, body)
        deliver.prepare(wire, faults)
        if not await deliver.strike_early(wire, faults):
            await deliver.whole(wire, await _embed(machine, body), faults)


async def _generate(machine: Machine, request: Request, wire: Wire, *, chat: bool) -> None:
    with _noted(machine, request, wire):
        body = asking.decode(request.body)
        faults = machine.faults_of(request, body)
        deliver.prepare(wire, faults)
        if await deliver.strike_early(wire, faults):
            return
        ask = asking.read(body, machine.dialect, machine.options, chat=chat)
        machine.admit()
        await _answer(machine, ask, faults, wire)


async def _answer(machine: Machine, ask: asking.Ask, faults: Faults, wire: Wire) -> None:
    jobs = [Job(choice.prompt, choice.output) for choice in ask.choices]
    frames = Frames(
        machine.dialect, chat=ask.chat, number=machine.seen, created=int(time.time()), model=machine.options.model
    )
    with _room(), machine.engine.open(jobs) as ticket:
        answer = Answer(ask, ticket, frames, faults)
        if ask.stream:
            async with aclosing(answer.stream()) as events:
                await deliver.stream(wire, events, faults, machine.dialect)
        else:
            await deliver.whole(wire, await answer.whole(), faults)
    for job, choice in zip(jobs, ask.choices, strict=True):
        if job.produced == len(choice.pieces):
            machine.stats.finished[choice.finish] += 1


async def _embed(machine: Machine, body: dict[str, Any]) -> dict[str, Any]:
    """Prefill only. Raises Refused."""
    asking.check_model(body.get("model"), machine.dialect, machine.options)
    try:
        given = msgspec.convert(body.get("input"), asking.Prompt)
        dimensions = msgspec.convert(body.get("dimensions") or machine.options.dimensions, int)
    except msgspec.ValidationError as error:
        raise Refused("schema", f"input: {error}", param="input") from error
    inputs = asking.split(given)
    prompts = [asking.tokens_of(one) for one in inputs]
    machine.admit()
    with _room(), machine.engine.open([Job(prompt, prompt[:0]) for prompt in prompts if prompt]) as ticket:
        left = len(ticket.jobs)
        while left:
            left -= (await ticket.inbox.get())[1].done
    form = body.get("encoding_format")
    data = [
        {"object": "embedding", "index": at, "embedding": _vector(text.vector(str(one), dimensions), form)}
        for at, one in enumerate(inputs)  # token ids have no text: they stand for themselves
    ]
    count = sum(len(prompt) for prompt in prompts)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": machine.options.model, "usage": usage}


def _vector(values: list[float], form: object) -> list[float] | str:
    """As OpenAI's encoding_format says: numbers, or base64 of little-endian float32."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode() if form == "base64" else values


@contextmanager
def _room() -> Generator[None]:
    try:
        yield
    except ValueError as error:
        raise Refused("too_long", str(error)) from error


@contextmanager
def _noted(machine: Machine, request: Request, wire: Wire) -> Generator[None]:
    """Remember the request and how it ended."""
    note = machine.remember(request)
    try:
        yield
        note["ended"] = "dropped" if wire.dropped else "finished"
    except (asyncio.CancelledError, ConnectionError):
        note["ended"] = "cancelled"
        raise
    except Refused as refused:
        note["ended"] = "refused"
        machine.stats.failed["overloaded" if refused.kind == "overloaded" else "validation"] += 1
        raise
    finally:
        note["status"] = wire.status
