"""The scheduler in real time: one task that steps it, and a queue for each request that waits on it."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from engines.sim.scheduler import Job, Part, Scheduler, Step
from engines.sim.stats import Stats


class Progress:
    """What one step did for one sequence of a request."""

    __slots__ = ("computed", "done", "first", "produced")

    def __init__(self, *, first: int, produced: int, computed: int, done: bool) -> None:
        self.first = first  # the answer tokens first..produced are new
        self.produced = produced
        self.computed = computed
        self.done = done


class Ticket:
    """One request in the engine: its sequences, and when things happened to it (seconds of the engine's clock)."""

    def __init__(self, jobs: Sequence[Job], arrived: float) -> None:
        self.jobs = jobs
        self.arrived = arrived
        self.started: float | None = None  # computing began
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.noted: float | None = None  # the newest progress
        self.inbox: asyncio.Queue[tuple[int, Progress]] = asyncio.Queue()  # with the sequence's number


class Engine:
    """Drives a Scheduler. `run` must be going for anything to happen."""

    def __init__(self, scheduler: Scheduler, stats: Stats, clock: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self.stats = stats
        self._clock = clock
        self._awake = asyncio.Event()

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self.scheduler.waiting)

    @contextmanager
    def open(self, jobs: Sequence[Job]) -> Generator[Ticket]:
        """Submit the sequences of one request; leaving ends those that still run. ValueError: one is too long."""
        ticket = Ticket(jobs, self._clock())
        for number, job in enumerate(jobs):
            job.owner = (ticket, number)
        if not all(self.scheduler.fits(len(job.prompt), len(job.output)) for job in jobs):
            raise ValueError("The request is longer than the KV cache.")
        left = False
        try:
            for job in jobs:
                self.scheduler.submit(job)
            self.stats.requests += 1
            self._awake.set()
            yield ticket
        except (asyncio.CancelledError, ConnectionError):  # the client has gone, not a fault of our own
            left = True
            raise
        finally:
            for job in jobs:
                self.scheduler.cancel(job)
            self._note_end(ticket, left=left)

    async def run(self) -> None:
        """Step for ever; a step's results come after the time it takes."""
        due = self._clock()
        while True:
            step = self.scheduler.plan()
            now = self._clock()
            if step is None:
                self._awake.clear()
                await self._awake.wait()
                due = self._clock()
                continue
            self._note_start(step, now)
            # Late sleeps are made up for, up to a point: a machine that was busy does not sprint afterwards.
            due = max(due, now - 0.05) + step.seconds
            await asyncio.sleep(max(due - now, 0.0))
            for part in self.scheduler.finish(step):
                self._tell(part)
            self._note_step(step)

    def _tell(self, part: Part) -> None:
        owner: Any = part.job.owner
        ticket: Ticket = owner[0]
        if part.produces:
            ticket.last_token = self._clock()
            if ticket.first_token is None:
                ticket.first_token = ticket.last_token
                self.stats.first_token.add(ticket.last_token - ticket.arrived)
            self.stats.answer_tokens += part.produces
        job = part.job
        ticket.noted = self._clock()
        first = job.produced - part.produces
        progress = Progress(first=first, produced=job.produced, computed=job.computed, done=job.done)
        ticket.inbox.put_nowait((owner[1], progress))

    def _note_start(self, step: Step, now: float) -> None:
        for part in step.parts:
            owner: Any = part.job.owner
            ticket: Ticket = owner[0]
            if ticket.started is None:
                ticket.started = now
                self.stats.queued.add(now - ticket.arrived)
            if not part.job.begun:
                part.job.begun = True
                begin = Progress(first=0, produced=0, computed=part.job.computed, done=False)
                ticket.inbox.put_nowait((owner[1], begin))
                hit, length = part.job.hit or 0, len(part.job.prompt)
                size = self.scheduler.cache.block_tokens
                self.stats.prompt_tokens += length
                self.stats.cached_tokens += hit
                self.stats.reused_blocks += hit // size
                self.stats.missed_blocks += (length - hit) // size

    def _note_step(self, step: Step) -> None:
        stats, cache = self.stats, self.scheduler.cache
        stats.steps += 1
        stats.busy += len(step.parts)
        stats.longest = max(stats.longest, *(len(part.job.tokens) for part in step.parts))
        prompt = sum(part.tokens for part in step.parts if part.job.produced <= part.produces)
        rate = self.scheduler.speed.prefill_rate
        prefill = min(step.seconds, prompt / rate) if rate > 0 else 0.0
        stats.prefill_seconds += prefill
        stats.decode_seconds += step.seconds - prefill
        total = stats.reused_blocks + stats.missed_blocks
        stats.iterations.append(
            {
                "iter": stats.steps,
                "iterLatencyMS": step.seconds * 1000,
                "gpuMemUsage": 0,
                "numActiveRequests": self.running,
                "numQueuedRequests": self.waiting,
                "maxNumActiveRequests": self.scheduler.speed.slots,
                "kvCacheStats": {
                    "allocNewBlocks": stats.missed_blocks,
                    "allocTotalBlocks": total,
                    "cacheHitRate": stats.reused_blocks / total if total else 0.0,
                    "freeNumBlocks": cache.capacity - cache.held,
                    "maxNumBlocks": cache.capacity,
                    "missedBlocks": stats.missed_blocks,
                    "reusedBlocks": stats.reused_blocks,
                    "tokensPerBlock": cache.block_tokens,
                    "usedNumBlocks": cache.held,
                },
            }
        )

    def _note_end(self, ticket: Ticket, *, left: bool) -> None:
        stats = self.stats
        if left:
            stats.cancelled += 1
            stats.failed["dropped"] += 1
            return
        now = self._clock()
        produced = sum(job.produced for job in ticket.jobs)
        stats.duration.add(now - ticket.arrived)
        stats.prompt_lengths.add(len(ticket.jobs[0].prompt))
        stats.answer_lengths.add(produced)
        if ticket.first_token is not None and ticket.last_token is not None and produced > 1:
            stats.per_token.add((ticket.last_token - ticket.first_token) / (produced - 1))
