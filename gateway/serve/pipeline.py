"""The life of one request, top to bottom."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from backends.errors import BackendError, Interrupted, Overloaded, Refused, TimedOut
from backends.types import Call, Operation, Replica, Reply
from gateway.serve.admit import Admission
from gateway.serve.authenticate import authenticate, check_model
from gateway.serve.body import Body
from gateway.serve.breaker import Breaker
from gateway.serve.catalog import Backends, Catalog, Live, Pool
from gateway.serve.decide import Facts, Plan, decide
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
from gateway.serve.prefix import PrefixIndex
from gateway.serve.queue import PoolQueue
from gateway.serve.route import Route, route
from gateway.serve.trail import Trail
from telemetry.record import RequestRecord


class Ask(msgspec.Struct, frozen=True):
    """One request as it came in."""

    operation: Operation
    authorization: str | None
    raw: bytes
    compress: bool = True  # whether forms other than the prompt as it came may be chosen
    headers: Mapping[str, str] = {}  # to be passed on: traceparent, tracestate


class Pipeline(msgspec.Struct, frozen=True):
    """All that outlives one request. `record` is called once for each, however it ends."""

    catalog: Callable[[], Catalog]
    live: Live
    backends: Backends
    admission: Admission
    queue: PoolQueue
    index: PrefixIndex
    breaker: Breaker
    gather: Gather
    record: Callable[[RequestRecord, Trail], None]

    @asynccontextmanager
    async def answer(self, ask: Ask, trail: Trail) -> AsyncGenerator[Reply]:
        """Yield the reply. Leaving the block ends everything the request began, here and upstream."""
        try:
            async with AsyncExitStack() as held:
                yield await self._reply(held, ask, trail)
                if not trail.meter.finished:
                    trail.outcome, trail.error = "interrupted", StreamIncomplete.code
        except (asyncio.CancelledError, GeneratorExit):
            trail.outcome = "cancelled"
            raise
        except Exception as error:
            trail.failed(error)
            raise
        finally:
            self._finish(trail)

    async def _reply(self, held: AsyncExitStack, ask: Ask, trail: Trail) -> Reply:
        catalog = self.catalog()
        caller = trail.caller = authenticate(catalog, ask.authorization)
        trail.mark("authenticate")
        body = trail.body = Body.parse(ask.raw, ask.operation)
        check_model(caller, body.model)
        trail.mark("parse")
        tokens = estimated_tokens(self.live, catalog, body)
        where = route(catalog, body, tokens)
        admitted = held.enter_context(self.admission.admit(caller, round(tokens) + (body.max_tokens or 0)))
        held.callback(lambda: admitted.settle(spent(trail, tokens)))
        trail.mark("admit")
        forms = self.gather.forms(body, compress=ask.compress)
        facts = self.gather.facts(forms, body, where, self.live)
        trail.route = why(facts, where)
        trail.mark("facts")
        return await self._first_to_answer(held, ask, body, where, facts, trail)

    async def _first_to_answer(  # noqa: PLR0913  the stages' outputs, each once
        self, held: AsyncExitStack, ask: Ask, body: Body, where: Route, facts: Facts, trail: Trail
    ) -> Reply:
        """Try plans, best first, until a server answers; each replica at most once."""
        failure: BackendError | None = None
        tried: set[str] = set()
        while True:
            plan = await self._choose(body, where, facts, tried, trail, failure)
            replica = plan.replica
            assert replica is not None  # noqa: S101  _choose waits until there is one
            tried.add(replica.id)
            try:
                async with AsyncExitStack() as attempt:
                    reply = await self._open(attempt, ask, body, plan, replica, trail)
                    held.push_async_exit(attempt.pop_all())
                    return reply
            except BackendError as error:
                failure = error
                if not isinstance(error, Refused):
                    self.breaker.failed(replica)
                if not error.retryable:
                    raise told(error) from error
                trail.meter.restart()

    async def _choose(  # noqa: PLR0913
        self, body: Body, where: Route, facts: Facts, tried: set[str], trail: Trail, failure: BackendError | None
    ) -> Plan:
        """The best plan whose replica has a free slot now; waits in the best plan's queue until there is one."""
        began = trail.clock()
        deadline: float | None = None
        while True:
            plans = decide(facts, where.pools, self.live, where.quality_worth)
            plans = [plan for plan in plans if plan.replica is None or plan.replica.id not in tried]
            if not plans or (failure is not None and plans[0].replica is None):
                raise told(failure)
            trail.plan = best = plans[0]
            trail.mark("decide")
            free = self._free(plans, best.pool)
            if free is not None:
                trail.queued += trail.clock() - began
                return free
            if deadline is None:
                deadline = began + best.pool.queue_wait
            await self.queue.turn(best.pool, deadline)
            where = self._refreshed(where)
            facts = self.gather.facts(facts.forms, body, where, self.live)

    def _free(self, plans: list[Plan], pool: Pool) -> Plan | None:
        """The first plan in this pool with a slot nobody waits for: a hot replica loses affinity for this request."""
        if not self.queue.open_to_newcomers(pool):
            return None
        for plan in plans:
            replica = plan.replica
            if replica and plan.pool.name == pool.name and self.live.inflight.get(replica.id, 0) < replica.slots:
                return plan
        return None

    def _refreshed(self, where: Route) -> Route:
        """The same pools as the catalog knows them now."""
        pools = self.catalog().pools
        return msgspec.structs.replace(where, pools=tuple(pools[one.name] for one in where.pools if one.name in pools))

    async def _open(  # noqa: PLR0913
        self, attempt: AsyncExitStack, ask: Ask, body: Body, plan: Plan, replica: Replica, trail: Trail
    ) -> Reply:
        attempt.enter_context(lease(self.live, replica))
        attempt.callback(self.queue.released, plan.pool)
        form, pool = plan.form, plan.pool
        trail.plan, trail.replica, trail.mode = plan, replica.id, self.index.mode
        trail.hit = hit_share(form, replica.id)
        ratio = tokens_per_byte(self.live, pool)
        trail.tokens = (round(facts_size(body) * ratio), round(form.size * ratio)) if ask.compress else None
        trail.attempts += 1
        sent = body.shaped(model=replica.served_model or body.model, text=form.text)
        trail.sent_bytes = form.size
        call = Call(
            body.operation,
            sent,
            body.stream,
            body.wants_usage,
            ask.headers,
            pool.first_byte_timeout,
            pool.idle_timeout,
        )
        self.index.record(replica, form.chain)
        reply = await attempt.enter_async_context(self.backends[pool.backend].send(replica, call, trail.meter))
        self.breaker.worked(replica)
        trail.status = reply.status
        trail.mark("upstream")
        return reply

    def _finish(self, trail: Trail) -> None:
        usage, plan = trail.meter.usage, trail.plan
        if usage is not None and plan is not None and plan.replica is not None:
            learn(self.live, plan.pool, plan.form.size, usage)
            if usage.cached_tokens is not None:
                self.index.trust(plan.replica, plan.form.chain, usage.cached_tokens, usage.prompt_tokens)
        self.record(trail.record(), trail)


def facts_size(body: Body) -> int:
    return len(body.prompt_text)


def estimated_tokens(live: Live, catalog: Catalog, body: Body) -> float:
    """Prompt tokens, from bytes; the ratio is the pool's where one was named, else the usual one."""
    pool = catalog.pools.get(body.model) or Pool(body.model)
    return len(body.prompt_text) * tokens_per_byte(live, pool)


def spent(trail: Trail, estimate: float) -> int:
    """Tokens to charge the key: the engine's count; where it gave none, the prompt's estimate if it was sent."""
    usage = trail.meter.usage
    if usage is not None:
        return usage.prompt_tokens + usage.completion_tokens
    return round(estimate) + trail.meter.chunks if trail.attempts else 0


def why(facts: Facts, where: Route) -> str:
    """The `x-turnout-route` header: forced, rule (only one pool can), or the gain expected of the large pool."""
    if where.forced:
        return "forced"
    if len(where.pools) == 1:
        return "rule"
    by_tier = {pool.tier: facts.acceptable[pool.name] for pool in where.pools}
    return f"gain={by_tier.get('large', 0.0) - by_tier.get('small', 0.0):+.2f}"


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
