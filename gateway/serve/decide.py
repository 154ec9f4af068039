"""Pool, replica and prompt form, decided together: the least expected cost first. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from backends.types import Replica, ReplicaId
from gateway.serve.catalog import Live, Pool
from gateway.serve.rank.cold_start import cold_start
from gateway.serve.rank.decode import decode
from gateway.serve.rank.prefill import prefill
from gateway.serve.rank.shortfall import shortfall
from gateway.serve.rank.wait import wait


class Form(msgspec.Struct, frozen=True):
    """One way to send this prompt: as it is, or compressed in a way that is cheap to make."""

    name: str  # "as is" | "lossless"
    size: int  # bytes of prompt text as sent
    held: Mapping[ReplicaId, int] = {}  # of these, bytes that a replica's KV cache is believed to hold
    loss: float = 0.0  # chance that the compression harms the answer, 0..1
    chain: Sequence[int] = ()  # hashes of its blocks, as the prefix index makes them
    text: bytes | None = None  # what replaces the prompt's field; None: nothing does


class Facts(msgspec.Struct, frozen=True):
    """All that is known of one request before anything is chosen."""

    forms: tuple[Form, ...]
    acceptable: Mapping[str, float] = {}  # pool -> chance that its answer is good enough, calibrated
    tokens_per_byte: Mapping[str, float] = {}  # pool -> learned from usage
    output_tokens: int = 200  # expected
    margin: float = 0.0  # how far P(acceptable) of two pools may differ by the classifier's error alone


class Because(msgspec.Struct, frozen=True):
    """The terms of one cost, in seconds of one slot; shown in the console as they are."""

    wait: float = 0.0
    cold_start: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    shortfall: float = 0.0

    @property
    def cost(self) -> float:
        return self.wait + self.cold_start + self.prefill + self.decode + self.shortfall


class Plan(msgspec.Struct, frozen=True):
    """One way to answer. `replica` is None where the pool has none yet and must be woken."""

    pool: Pool
    replica: Replica | None
    form: Form
    because: Because


DEFAULT_TOKENS_PER_BYTE = 0.25


def decide(facts: Facts, pools: Iterable[Pool], live: Live, quality_worth: float) -> list[Plan]:
    """Every way to answer, best first; the next one is the fallback.

    `quality_worth`: what a good answer is worth, in seconds of a slot. A form that removes nothing is left out,
    as is a replica that the breaker holds back. Ties go to the small tier, then to the replica with fewer requests,
    then by name.
    """
    forms = list(_worth_considering(facts.forms))
    candidates = tuple(pools)
    acceptable = _told_apart(facts, candidates)
    plans = [plan for pool in candidates for plan in _plans(facts, forms, pool, live, quality_worth, acceptable)]
    return sorted(plans, key=lambda plan: _order(plan, live))


def _told_apart(facts: Facts, pools: Iterable[Pool]) -> Mapping[str, float]:
    """P(acceptable) by pool: one is better than the worst by what exceeds the margin of noise."""
    chances = {pool.name: facts.acceptable.get(pool.name, 0.0) for pool in pools}
    worst = min(chances.values(), default=0.0)
    return {name: worst + max(0.0, chance - worst - facts.margin) for name, chance in chances.items()}


def _order(plan: Plan, live: Live) -> tuple[float, bool, int, str, str]:
    name = plan.replica.id if plan.replica else ""
    busy = live.inflight.get(plan.replica.id, 0) if plan.replica else 0
    return (plan.because.cost, plan.pool.tier == "large", busy, name, plan.form.name)


def _worth_considering(forms: tuple[Form, ...]) -> Iterator[Form]:
    """The first form is the prompt as it is; another counts only if it is smaller."""
    for form in forms:
        if form is forms[0] or form.size < forms[0].size:
            yield form


def _plans(
    facts: Facts,
    forms: Iterable[Form],
    pool: Pool,
    live: Live,
    quality_worth: float,
    acceptable: Mapping[str, float],
) -> Iterator[Plan]:
    ratio = facts.tokens_per_byte.get(pool.name, DEFAULT_TOKENS_PER_BYTE)
    decoding = decode(pool, facts.output_tokens)
    replicas = [replica for replica in pool.replicas if replica.id not in live.blocked]
    for form in forms:
        missing = shortfall(quality_worth, acceptable[pool.name], form.loss)
        if not replicas and pool.scalable:
            yield Plan(
                pool,
                None,
                form,
                Because(
                    cold_start=cold_start(pool, live.waiting.get(pool.name, 0), facts.output_tokens),
                    prefill=prefill(pool, form.size * ratio, 0.0),
                    decode=decoding,
                    shortfall=missing,
                ),
            )
        for replica in replicas:
            held = form.held.get(replica.id, 0)
            yield Plan(
                pool,
                replica,
                form,
                Because(
                    wait=wait(pool, replica, live, facts.output_tokens),
                    prefill=prefill(pool, form.size * ratio, held * ratio),
                    decode=decoding,
                    shortfall=missing,
                ),
            )
