"""One simulated server's state: its engine, its counters, what it remembers of its requests."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from engines.sim.cache import Event, PagedCache
from engines.sim.dialects import DIALECTS, Refused
from engines.sim.engine import Engine
from engines.sim.faults import Faults, UnknownFault
from engines.sim.kv_events import KvEvents, ZmqPublisher
from engines.sim.options import Options
from engines.sim.scheduler import Scheduler, Speed
from engines.sim.stats import Stats
from engines.sim.wire import Connection, Request


class Machine:
    """What the routes share."""

    def __init__(self, options: Options, stack: ExitStack, clock: Callable[[], float] = time.monotonic) -> None:
        """`stack` closes the publisher of KV events, where there is one. Raises MissingDependency, UnknownFault."""
        self.options = options
        self.dialect = DIALECTS[options.dialect]
        self.faults = Faults(options.fault)
        self.stats = Stats()
        self.connections: set[Connection] = set()
        self.journal: deque[dict[str, Any]] = deque(maxlen=options.keep)
        self.loading = options.start_delay > 0
        self.draining = False
        self.seen = 0
        wanted = bool(options.kv_events)
        publisher = stack.enter_context(ZmqPublisher(options.kv_events, options.kv_topic)) if wanted else None
        self.kv_endpoint = publisher.endpoint if publisher else None
        self.events = KvEvents(options.block_tokens, options.kv_blocks, publisher)
        speed = Speed(
            slots=options.slots,
            prefill_rate=options.prefill_rate,
            decode_rate=options.decode_rate,
            decode_total=options.decode_total,
            batch_tokens=options.batch_tokens,
            tokens_per_step=options.tokens_per_step,
            reserve=self.dialect.reserve,
        )
        cache = PagedCache(options.kv_blocks, options.block_tokens, self._note)
        self.engine = Engine(Scheduler(speed, cache), self.stats, clock)

    def admit(self) -> None:
        """Raises Refused where the engine would refuse for load."""
        limit = self.options.slots + self.options.max_queue if self.options.max_queue >= 0 else self.dialect.max_total
        if limit is not None and self.engine.running + self.engine.waiting >= limit:
            tgi = self.dialect.name == "tgi"
            raise Refused("overloaded", "Model is overloaded" if tgi else "Too many requests are waiting.")

    def faults_of(self, request: Request, body: dict[str, Any]) -> Faults:
        """The request's own order, else the one in force for all. Raises Refused."""
        order = request.headers.get("x-sim-fault", body.get("sim_fault"))
        return self.faults if order is None else order_faults(str(order))

    def remember(self, request: Request) -> dict[str, Any]:
        """A note of a request, to be filled in when it has ended."""
        self.seen += 1
        note: dict[str, Any] = {
            "method": request.method,
            "path": request.path,
            "headers": dict(request.headers),
            "body": request.body.decode("utf-8", "replace"),
            "status": 0,
            "ended": None,
        }
        self.journal.append(note)
        return note

    def state(self) -> dict[str, Any]:
        """What tests want to know; the same as GET /sim/state."""
        cache = self.engine.scheduler.cache
        return {
            "running": self.engine.running,
            "waiting": self.engine.waiting,
            "connections": len(self.connections),
            "kv_used": cache.used,
            "kv_held": cache.held,
            "kv_kept": cache.kept,
            "seen": self.seen,
            "finished": sum(self.stats.finished.values()),
            "cancelled": self.stats.cancelled,
            "preemptions": self.engine.scheduler.preemptions,
            "prompt_tokens": self.stats.prompt_tokens,
            "cached_tokens": self.stats.cached_tokens,
            "answer_tokens": self.stats.answer_tokens,
            "fault": self.faults.order,
            "kv_endpoint": self.kv_endpoint,
            "requests": list(self.journal),
        }

    def _note(self, event: Event) -> None:
        self.events.note(event)
        asyncio.get_running_loop().call_soon(self._flush)  # what one step brought goes out as one batch

    def _flush(self) -> None:
        self.events.flush(time.time())


def order_faults(order: str) -> Faults:
    """Raises Refused, in words for the one who ordered."""
    try:
        return Faults(order)
    except UnknownFault as error:
        raise Refused("invalid", str(error), status=400) from error
