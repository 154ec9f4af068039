"""Who is computed next and how long it takes: slots, rates and the KV cache of one simulated engine, step by step.

Pure: it neither waits nor looks at a clock. A step is one pass of the model over a batch, as in vLLM's engine:
every sequence that has begun to answer gets its next token, and the rest of the batch is prompt.
"""

from array import array
from collections import deque
from typing import Any

import msgspec

from engines.sim.cache import Held, PagedCache
from engines.sim.text import Tokens


class Speed(msgspec.Struct, frozen=True):
    """What the simulated hardware can do. A rate of 0 means no time at all."""

    slots: int = 4  # sequences computed together; the rest wait
    prefill_rate: float = 2000.0  # prompt tokens a second, all sequences together
    decode_rate: float = 50.0  # tokens a second of one sequence
    decode_total: float = 0.0  # tokens a second of all sequences together; 0: batching is free
    batch_tokens: int = 512  # prompt tokens of one step: how long a decode may be held up by a prefill
    tokens_per_step: int = 1  # more than 1: a speculator whose guesses are always right
    reserve: bool = False  # take the blocks of the whole answer at the start, instead of preempting later


class Job:
    """One sequence: a prompt and the answer it will get."""

    __slots__ = ("begun", "computed", "done", "held", "hit", "output", "owner", "produced", "prompt", "tokens")

    def __init__(self, prompt: Tokens, output: Tokens, owner: Any = None) -> None:
        self.prompt = prompt
        self.output = output
        self.owner = owner  # whatever the caller wants to find again
        self.tokens = array("I", prompt)  # the prompt and what was answered so far
        self.produced = 0
        self.computed = 0
        self.hit: int | None = None  # prompt tokens found in the cache at the first start
        self.held: Held | None = None
        self.begun = False  # for whoever counts first starts
        self.done = False

    @property
    def remaining(self) -> int:
        """Tokens whose keys and values are not computed yet."""
        return len(self.tokens) - self.computed


class Part(msgspec.Struct, frozen=True):
    """What a step does for one job."""

    job: Job
    tokens: int  # computed
    produces: int  # answer tokens at its end


class Step(msgspec.Struct, frozen=True):
    parts: tuple[Part, ...]
    seconds: float


class Scheduler:
    """First come, first served. Preempts the youngest where the cache is full, unless room is reserved ahead."""

    def __init__(self, speed: Speed, cache: PagedCache) -> None:
        self.speed = speed
        self.cache = cache
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.preemptions = 0

    def fits(self, prompt: int, output: int) -> bool:
        """Whether such a sequence could ever run."""
        return self.cache.blocks_for(prompt + output) <= self.cache.capacity

    def submit(self, job: Job) -> None:
        """Raises ValueError for a sequence that can never run."""
        if not self.fits(len(job.prompt), len(job.output)):
            raise ValueError("The sequence is longer than the KV cache.")
        self.waiting.append(job)

    def cancel(self, job: Job) -> None:
        """Forget a job, wherever it stands; its slot and blocks are free at once."""
        if job.done:
            return
        job.done = True
        if job in self.running:
            self._release(job)
        else:
            self.waiting.remove(job)

    def plan(self) -> Step | None:
        """The next step, or None where there is nothing to do. `finish` must follow before the next `plan`."""
        self._make_room()
        self._admit()
        parts = tuple(self._parts())
        return Step(parts, self._seconds(parts)) if parts else None

    def finish(self, step: Step) -> list[Part]:
        """Apply a step; the parts of jobs that were cancelled meanwhile are left out. A job that ended is `done`."""
        kept = [part for part in step.parts if not part.job.done]
        for part in kept:
            job = part.job
            job.computed += part.tokens
            job.tokens.extend(job.output[job.produced : job.produced + part.produces])
            job.produced += part.produces
            if job.held is not None:
                self.cache.fill(job.held, job.tokens, job.computed)
            if job.produced == len(job.output) and (job.output or job.remaining == 0):
                job.done = True
                self._release(job)
        return kept

    def _parts(self) -> list[Part]:
        speed = self.speed
        parts: list[Part] = []
        budget = speed.batch_tokens
        for job in self.running:
            left = len(job.output) - job.produced
            if self._decodes(job):
                parts.append(Part(job, job.remaining, min(speed.tokens_per_step, left)))
            elif budget > 0:
                tokens = min(job.remaining, budget)
                budget -= tokens
                parts.append(Part(job, tokens, min(1, left) if tokens == job.remaining else 0))
        return parts

    def _decodes(self, job: Job) -> bool:
        return job.produced > 0 and job.remaining <= self.speed.tokens_per_step

    def _seconds(self, parts: tuple[Part, ...]) -> float:
        speed = self.speed
        decoding = [part for part in parts if self._decodes(part.job)]
        prompt = sum(part.tokens for part in parts) - sum(part.tokens for part in decoding)
        seconds = prompt / speed.prefill_rate if speed.prefill_rate > 0 else 0.0
        if decoding and speed.decode_rate > 0:
            shared = len(decoding) / speed.decode_total if speed.decode_total > 0 else 0.0
            seconds += max(1.0 / speed.decode_rate, shared)
        return seconds

    def _make_room(self) -> None:
        """Every running sequence needs blocks for the tokens it has; the youngest gives way where there are none."""
        for job in list(self.running):
            while job.held is not None and not self.cache.grow(job.held, len(job.tokens)):
                self._preempt(self.running[-1])

    def _preempt(self, job: Job) -> None:
        """Back to the head of the queue; what it had computed is computed again, except what the cache still knows."""
        self._release(job)
        job.computed = 0
        self.waiting.appendleft(job)
        self.preemptions += 1

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.speed.slots:
            job = self.waiting[0]
            room = len(job.prompt) + len(job.output) if self.speed.reserve else len(job.tokens)
            held = self.cache.open(job.tokens, room)
            if held is None:
                return
            self.waiting.popleft()
            job.held, job.computed = held, held.hit
            if job.hit is None:
                job.hit = held.hit
            self.running.append(job)

    def _release(self, job: Job) -> None:
        self.running.remove(job)
        if job.held is not None:
            self.cache.close(job.held)
            job.held = None
