"""What is known of a request before anything is chosen: forms, hits by replica, token estimates, P(acceptable)."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from backends.types import ReplicaId
from gateway.serve.body import Body
from gateway.serve.catalog import Live, Pool, Tier
from gateway.serve.compress.lossless import lossless
from gateway.serve.decide import DEFAULT_TOKENS_PER_BYTE, Facts, Form
from gateway.serve.prefix import PrefixIndex
from gateway.serve.route import Route
from telemetry.usage import Usage

Difficulty = Callable[[Body], Mapping[Tier, float]]
"""P(acceptable) by tier: the classifier, or a constant where there is none."""

_EXPECTED_ANSWER = 200.0  # tokens, until a pool has shown what it writes
_USUAL_PROMPT = 2000.0  # bytes, likewise
_MEMORY = 0.05  # weight of the newest request in what is learned


class Gather(msgspec.Struct, frozen=True):
    """The facts of one request. Pure but for reading the index and the counters."""

    index: PrefixIndex
    difficulty: Difficulty
    margin: float = 0.0  # a gain in P(acceptable) that is no more than the classifier's own error

    def forms(self, body: Body, *, compress: bool) -> tuple[Form, ...]:
        """The prompt as it came and, where it is asked for and gains something, without what carries no meaning."""
        seed = bytes(body.fields.get("cache_salt", b""))
        found = [Form("as is", len(body.prompt_text), chain=self.index.chain(seed, body.prompt_text))]
        shorter = lossless(body) if compress else None
        if shorter is not None:
            text = body.with_messages(shorter)
            found.append(Form("lossless", len(text), chain=self.index.chain(seed, text), text=shorter))
        return tuple(found)

    def facts(self, forms: Sequence[Form], body: Body, route: Route, live: Live) -> Facts:
        replicas = [replica for pool in route.pools for replica in pool.replicas]
        held = tuple(msgspec.structs.replace(form, held=self.index.hits(replicas, form.chain)) for form in forms)
        return Facts(
            held,
            self._acceptable(body, route),
            {pool.name: tokens_per_byte(live, pool) for pool in route.pools},
            _expected_output(live, body, route),
            self.margin,
        )

    def _acceptable(self, body: Body, route: Route) -> Mapping[str, float]:
        if len({pool.tier for pool in route.pools}) < 2:  # noqa: PLR2004  nothing to choose between
            return {pool.name: 1.0 for pool in route.pools}
        by_tier = self.difficulty(body)
        return {pool.name: by_tier[pool.tier] for pool in route.pools}


def tokens_per_byte(live: Live, pool: Pool) -> float:
    return live.tokens_per_byte.get(pool.name, DEFAULT_TOKENS_PER_BYTE)


def _expected_output(live: Live, body: Body, route: Route) -> int:
    seen = [live.output_tokens.get(pool.name, _EXPECTED_ANSWER) for pool in route.pools]
    likely = sum(seen) / len(seen)
    return round(min(likely, body.max_tokens) if body.max_tokens else likely)


def learn(live: Live, pool: Pool, size: int, usage: Usage) -> None:
    """Move what is known of the pool towards what this request showed. `size`: bytes of its prompt, as sent.

    Tokens and bytes are averaged apart: a chat template adds the same few tokens to each prompt, which would say
    much of a short one's ratio and nothing of a long one's, where the estimate counts.
    """
    if size and usage.prompt_tokens:
        name = pool.name
        _towards(live.prompt_bytes, name, size, _USUAL_PROMPT)
        # no tokenizer makes more tokens than bytes: what goes beyond came from pictures, or is the engine's mistake
        tokens = min(usage.prompt_tokens, size)
        _towards(live.prompt_tokens, name, tokens, _USUAL_PROMPT * DEFAULT_TOKENS_PER_BYTE)
        live.tokens_per_byte[name] = live.prompt_tokens[name] / live.prompt_bytes[name]
    if usage.completion_tokens:
        _towards(live.output_tokens, pool.name, usage.completion_tokens, _EXPECTED_ANSWER)


def _towards(learned: dict[str, float], name: str, seen: float, start: float) -> None:
    before = learned.get(name, start)
    learned[name] = before + _MEMORY * (seen - before)


def hit_share(form: Form, replica: ReplicaId) -> float:
    """Share of the prompt (0..1) that the index believes this replica holds."""
    return min(1.0, form.held.get(replica, 0) / form.size) if form.size else 0.0
