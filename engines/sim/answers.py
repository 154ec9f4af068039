"""From computed tokens to JSON: the frames of a stream as they come, or the whole answer at the end."""

from collections.abc import AsyncGenerator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from engines.sim.ask import Ask, Choice, Piece
from engines.sim.dialects import Frames, Told, timings
from engines.sim.engine import Progress, Ticket
from engines.sim.faults import Faults


class Frame(msgspec.Struct, frozen=True):
    """One event of a stream, and how many answer tokens it brings."""

    data: dict[str, Any]
    tokens: int = 0


class Answer:
    """One request on its way: what was asked, the engine's ticket, and the words for it."""

    def __init__(self, ask: Ask, ticket: Ticket, frames: Frames, faults: Faults) -> None:
        self.ask = ask
        self.ticket = ticket
        self.frames = frames
        self.faults = faults
        self._dialect = frames.dialect
        self._begun: set[int] = set()

    def told(self) -> Told:
        """Tokens and times so far."""
        ticket = self.ticket
        hits = [job.hit or 0 for job, choice in zip(ticket.jobs, self.ask.choices, strict=True) if not choice.repeated]
        started = ticket.started or ticket.arrived
        first, last = ticket.first_token or started, ticket.last_token or started
        produced = sum(job.produced for job in ticket.jobs)
        return Told(self.ask.prompt_tokens, produced, sum(hits), first - started, last - first)

    async def whole(self) -> dict[str, Any]:
        """The answer of a request that did not ask for a stream."""
        left = len(self.ask.choices)
        while left:
            _, progress = await self.ticket.inbox.get()
            left -= progress.done
        body = self.frames.whole([self._choice(index, one) for index, one in enumerate(self.ask.choices)], self.told())
        if "no-usage" in self.faults:
            del body["usage"]
        return body

    async def stream(self) -> AsyncGenerator[Frame]:
        """The events, without the terminator."""
        left = len(self.ask.choices)
        while left:
            number, progress = await self.ticket.inbox.get()
            left -= progress.done
            if progress.first == progress.produced:
                if self.ask.progress and number == 0 and not progress.done:
                    yield self._progress(progress)
                continue
            for frame in self._step(number, progress):
                yield frame
        if self.ask.include_usage and not {"no-usage", "usage-on-choice"} & self._ordered:
            yield Frame(self.frames.usage(self.told()))

    @property
    def _ordered(self) -> set[str]:
        return {name for name in ("no-usage", "usage-on-choice") if name in self.faults}

    def _step(self, number: int, progress: Progress) -> list[Frame]:
        """What one step of the engine adds to one choice."""
        choice = self.ask.choices[number]
        frames: list[Frame] = []
        if number not in self._begun:
            self._begun.add(number)
            frames += self._role(number)
        runs = [list(run) for _, run in groupby(choice.pieces[progress.first : progress.produced], _same)]
        for at, run in enumerate(runs):
            last = progress.done and at == len(runs) - 1
            finish = choice.finish if last and not self._dialect.finish_apart else None
            start = progress.first + sum(len(one) for one in runs[:at])
            data = self.frames.chunk(number, self._delta(choice, run, start), finish)
            if self.ask.logprobs and self.ask.chat:
                data["choices"][0]["logprobs"] = {"content": [_logprob(piece) for piece in run]}
            frames.append(Frame(data, len(run)))
        if progress.done:
            if self._dialect.finish_apart:
                frames.append(Frame(self.frames.chunk(number, {}, choice.finish)))
            self._add_counts(frames[-1].data)
        return frames

    def _role(self, number: int) -> list[Frame]:
        wanted = self._dialect.role_chunk or "role-only" in self.faults
        if not self.ask.chat or not wanted or "no-role" in self.faults:
            return []
        content = "" if "role-only" in self.faults else self._dialect.role_content
        return [Frame(self.frames.role(number, content))]

    def _delta(self, choice: Choice, run: Sequence[Piece], start: int) -> dict[str, Any]:
        kind = run[0].kind
        if kind == "tool":
            return {"tool_calls": [_call(run)]}
        if "full-text" in self.faults:
            run = [piece for piece in choice.pieces[: start + len(run)] if piece.kind == kind]
        words = "".join(piece.text for piece in run)
        if "separators" in self.faults:
            words += "\x85\u2028\u2029"
        return {"reasoning_content" if kind == "reasoning" else "content": words}

    def _add_counts(self, last: dict[str, Any]) -> None:
        """What goes on the chunk with the finish_reason beside it."""
        if "usage-on-choice" in self.faults or (
            self._dialect.timings and not self.ask.chat and "no-usage" not in self.faults
        ):
            last["usage"] = self.frames.usage(self.told())["usage"]
        if self._dialect.timings and not (self.ask.chat and self.ask.include_usage):
            last["timings"] = timings(self.told())

    def _progress(self, progress: Progress) -> Frame:
        job = self.ticket.jobs[0]
        spent = (self.ticket.noted or self.ticket.arrived) - (self.ticket.started or self.ticket.arrived)
        computed = min(progress.computed, len(job.prompt))
        return Frame(
            self.frames.progress(
                total=len(job.prompt), cached=job.hit or 0, processed=computed, milliseconds=spent * 1000
            )
        )

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        content = "".join(piece.text for piece in choice.pieces if piece.kind == "content")
        if not self.ask.chat:
            return {"index": index, "text": content, "logprobs": None, "finish_reason": choice.finish}
        message: dict[str, Any] = {"role": "assistant", "content": content}
        thoughts = "".join(piece.text for piece in choice.pieces if piece.kind == "reasoning")
        if thoughts:
            message["reasoning_content"] = thoughts
        calls = [piece for piece in choice.pieces if piece.kind == "tool"]
        if calls:
            message["content"] = None
            message["tool_calls"] = [_call(list(run)) for _, run in groupby(calls, lambda piece: piece.call)]
            for call in message["tool_calls"]:
                del call["index"]
        logprobs = {"content": [_logprob(piece) for piece in choice.pieces]} if self.ask.logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish}


def _same(piece: Piece) -> tuple[str, int]:
    """Neighbouring pieces that share a delta."""
    return piece.kind, piece.call


def _call(run: Sequence[Piece]) -> dict[str, Any]:
    """A tool call, or the part of it that a step brought: id and name come with its first piece."""
    first = run[0]
    arguments = "".join(piece.text for piece in run)
    if not first.name:
        return {"index": first.call, "function": {"arguments": arguments}}
    function = {"name": first.name, "arguments": arguments}
    return {"index": first.call, "id": f"call_sim{first.call}", "type": "function", "function": function}


def _logprob(piece: Piece) -> dict[str, Any]:
    return {"token": piece.text, "logprob": -0.5, "bytes": list(piece.text.encode()), "top_logprobs": []}
