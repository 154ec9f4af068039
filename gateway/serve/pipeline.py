"""The life of one request, top to bottom."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import msgspec
from typing_extensions import override

from backends.errors import BackendError, Broken, Interrupted, Overloaded, Refused, TimedOut
from backends.types import Call, Operation, Replica, ReplicaId, Reply
from gateway.serve.admit import Admits
from gateway.serve.authenticate import authenticate, check_model
from gateway.serve.body import Body
from gateway.serve.breaker import Breaker
from gateway.serve.catalog import Backends, Catalog, Live, Pool
from gateway.serve.decide import DEFAULT_TOKENS_PER_BYTE, Facts, Plan, decide
from gateway.serve.errors import (
    GatewayError,
    NoReplica,
    StreamIncomplete,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
)
from gateway.serve.facts import Gather, hit_share, learn, tokens_per_byte
from gateway.serve.lease import lease
from gateway.serve.life import Held, Life
from gateway.serve.prefix import PrefixIndex
from gateway.serve.queue import PoolQueue
from gateway.serve.route import Route, route
from gateway.serve.trail import Trail
from telemetry import names
from telemetry.record import RequestRecord

# A turn that took longer than this (seconds) was a wait: the facts are gathered anew.
_WAITED = 0.001


class Ask(msgspec.Struct, frozen=True):
    """One request as it came in."""

    operation: Operation
    authorization: str | None
    raw: bytes
    compress: bool = True  # whether forms other than the prompt as it came may be chosen

    @override
    def __repr__(self) -> str:
        """Never the key nor the prompt: this ends up in logs and tracebacks."""
        return f"Ask({self.operation}, {len(self.raw)} bytes)"


class Pipeline(msgspec.Struct, frozen=True):
    """All that outlives one request. `record` is called once for each, however it ends."""

    catalog: Callable[[], Catalog]
    live: Live
    backends: Backends
    admission: Admits
    queue: PoolQueue
    index: PrefixIndex
    breaker: Breaker
    gather: Gather
    arrived: Callable[[Pool], None]  # a request wants this pool: the control loop should hear of it
    record: Callable[[RequestRecord, Trail], None]

    def answer(self, ask: Ask, trail: Trail) -> AbstractAsyncContextManager[Reply]:
        """Give the reply. Leaving the block ends everything the request began, here and upstream."""
        return Life(trail, lambda held: self._reply(held, ask, trail), self._finish)

    async def _reply(self, held: Held, ask: Ask, trail: Trail) -> Reply:
        catalog = self.catalog()
        stage = trail.trace.stage
        stage(names.AUTHENTICATE)
        caller = trail.caller = authenticate(catalog, ask.authorization)
        stage(names.PARSE)
        body = trail.body = Body.parse(ask.raw, ask.operation)
        check_model(caller, body.model)
        stage(names.ADMIT)
        tokens = estimated_tokens(self.live, body)
        where = route(catalog, body, tokens)
        admitted = held.enter(self.admission.admit(caller, round(tokens) + (body.max_tokens or 0)))
        held.then(lambda: admitted.settle(spent(trail, tokens)))
        stage(names.FACTS)
        forms = self.gather.forms(body, compress=ask.compress)
        facts = self.gather.facts(forms, body, where, self.live)
        trail.route = why(facts, where)
        stage(names.DECIDE)
        return await self._first_to_answer(held, body, where, facts, trail)

    async def _first_to_answer(self, held: Held, body: Body, where: Route, facts: Facts, trail: Trail) -> Reply:
        """Try plans, best first, until a server answers; each replica at most once.

        One that broke off before its first byte may have been at work: generating again costs no more than time,
        so another is tried, but only one, lest a request that kills its server goes round all of them.
        """
        failure: BackendError | None = None
        tried: set[ReplicaId] = set()
        while True:
            before = len(held)
            try:
                plan, replica = await self._seat(held, body, where, facts, tried, trail, failure)
                tried.add(replica.id)
                return await self._open(held, body, plan, replica, trail)
            except BackendError as error:
                await held.leave(error, before)
                again = error.retryable or (isinstance(error, Broken) and not isinstance(failure, Broken))
                failure = error
                trail.trace.failed(type(error).__name__)
                if not again:
                    raise told(error) from error
                trail.meter.restart()
                where = self._refreshed(where)

    async def _seat(
        self,
        held: Held,
        body: Body,
        where: Route,
        facts: Facts,
        tried: set[ReplicaId],
        trail: Trail,
        failure: BackendError | None,
    ) -> tuple[Plan, Replica]:
        """A slot of the best plan's replica, or of another in its pool; waits in that pool's queue for one."""
        deadline: float | None = None
        while True:
            ranked = self._ranked(where, facts, tried, failure)
            best = ranked[0]
            trail.plan = best
            began = trail.clock()
            deadline = deadline or began + best.pool.queue_wait
            trail.trace.stage(names.QUEUE)
            self.arrived(best.pool)
            async with self.queue.turn(best.pool, deadline, without=tried) as has_waited:
                if has_waited:
                    waited = trail.clock() - began
                    where = self._refreshed(where)  # the queue goes by the newest catalog, so this must too
                    if waited > _WAITED:
                        trail.queued += waited
                        facts = self.gather.facts(facts.forms, body, where, self.live)
                    ranked = self._ranked(where, facts, tried, failure)
                plan = self._free(ranked, best.pool)
                if plan is not None and plan.replica is not None:
                    held.enter(lease(self.live, plan.replica, partial(self.queue.poke, plan.pool.name)))
                    return plan, plan.replica
            where = self._refreshed(where)

    def _ranked(self, where: Route, facts: Facts, tried: set[ReplicaId], failure: BackendError | None) -> list[Plan]:
        """The plans that are left, best first. Raises what the client is told where none is."""
        self.breaker.blocked()  # ends back-offs that are over
        plans = decide(facts, where.pools, self.live, where.quality_worth)
        # One that has failed already is not made to wait for a pool to wake: those that are there are tried.
        left = [one for one in plans if (one.replica.id not in tried if one.replica else failure is None)]
        if not left:
            raise told(failure)
        return left

    def _free(self, plans: list[Plan], pool: Pool) -> Plan | None:
        """The first plan that has a slot: in the pool whose turn it is, or a better one elsewhere.

        A hot replica loses affinity for this request: a cooler one of its pool is taken rather than waiting.
        """
        for plan in plans:
            if plan.replica is None:
                continue
            free = self.live.inflight.get(plan.replica.id, 0) < plan.replica.slots
            if free and (plan.pool.name == pool.name or not self.live.waiting.get(plan.pool.name)):
                return plan
        return None

    def _refreshed(self, where: Route) -> Route:
        """The same pools as the catalog knows them now."""
        pools = self.catalog().pools
        return msgspec.structs.replace(where, pools=tuple(pools[one.name] for one in where.pools if one.name in pools))

    async def _open(self, held: Held, body: Body, plan: Plan, replica: Replica, trail: Trail) -> Reply:
        form, pool = plan.form, plan.pool
        trail.plan, trail.replica = plan, replica.id
        trail.mode = f"{self.index.mode}; {self.index.reason}"
        trail.hit = hit_share(form, replica.id)
        trail.sent_bytes = form.size
        trail.attempts += 1
        ratio = tokens_per_byte(self.live, pool)
        trail.tokens = (round(len(body.prompt_text) * ratio), round(form.size * ratio))
        call = Call(
            body.operation,
            body.shaped(model=replica.served_model or body.model, text=form.text),
            body.stream,
            body.wants_usage,
            trail.trace.attempt(replica.id),
            pool.first_byte_timeout,
            pool.idle_timeout,
        )
        self.index.record(replica, form.chain)
        held.enter(self.breaker.attempt(replica))
        try:
            reply = await held.enter_async(self.backends[pool.backend].send(replica, call, trail.meter))
        except BackendError as error:
            self.index.withdraw(replica, form.chain, form.held.get(replica.id, 0))
            if isinstance(error, Refused | Overloaded):
                self.breaker.worked(replica)  # it is there, and says no
            else:
                self.breaker.failed(replica)
            raise
        self.breaker.worked(replica)
        trail.status = reply.status
        return reply

    def _finish(self, trail: Trail) -> None:
        usage, plan = trail.meter.usage, trail.plan
        if plan is not None and plan.replica is not None:
            if trail.outcome == "interrupted":
                self.breaker.failed(plan.replica)
            if usage is not None:
                learn(self.live, plan.pool, plan.form.size, usage)
                if usage.cached_tokens is not None:
                    expected = trail.hit * usage.prompt_tokens
                    self.index.trust(plan.replica, expected=expected, reported=usage.cached_tokens)
        self.record(trail.record(), trail)


def estimated_tokens(live: Live, body: Body) -> float:
    """Prompt tokens, from bytes; the ratio is the pool's where one was named, else the usual one."""
    return len(body.prompt_text) * live.tokens_per_byte.get(body.model, DEFAULT_TOKENS_PER_BYTE)


def spent(trail: Trail, estimate: float) -> int:
    """Tokens to charge the key: the engine's count; where it gave none, the prompt's estimate if it was sent."""
    usage = trail.meter.usage
    if usage is not None:
        return usage.prompt_tokens + usage.completion_tokens
    return round(estimate) + trail.meter.chunks if trail.attempts else 0


def why(facts: Facts, where: Route) -> str:
    """The `x-turnout-route` header: forced, rule (no pools of two tiers), or the gain expected of the large pool."""
    if where.forced:
        return "forced"
    by_tier = {pool.tier: facts.acceptable[pool.name] for pool in where.pools}
    return f"gain={by_tier['large'] - by_tier['small']:+.3f}" if len(by_tier) > 1 else "rule"


def told(failure: BackendError | None) -> GatewayError:
    """Turn what a backend raised into what a client is told: the only such place."""
    error: GatewayError
    match failure:
        case None:
            error = NoReplica("No replica is ready, and none can be started.", retry_after=5)
        case Overloaded():
            error = NoReplica("Every replica is busy. Try again shortly.", retry_after=failure.retry_after or 1)
        case Refused():
            error = UpstreamRefused(
                str(failure), status=failure.status, type=failure.type, code=failure.code, param=failure.param
            )
        case TimedOut():
            error = UpstreamTimeout("The model server took the request and went silent.")
        case Interrupted():
            error = StreamIncomplete("The model server broke off its answer.")
        case _:
            error = UpstreamFailed("The model server could not answer.")
    error.__cause__ = failure
    return error
