"""Which pools may answer a request at all: the name it asked for, and the hard rules."""

from collections.abc import Iterable

import msgspec

from backends.types import Operation
from gateway.serve.authenticate import SHOWN
from gateway.serve.body import Body
from gateway.serve.catalog import Catalog, Kind, Pool
from gateway.serve.errors import ContextExceeded, ModelNotFound


class Route(msgspec.Struct, frozen=True):
    """The candidates, and what a good answer is worth (seconds of a slot). `forced`: the caller named the pool."""

    pools: tuple[Pool, ...]
    quality_worth: float
    forced: bool


_KINDS: dict[Operation, Kind] = {"chat": "chat", "completions": "chat", "embeddings": "embed"}

# An estimate from bytes can be this far off; beyond it a prompt certainly does not fit.
_SLACK = 2.0


def route(catalog: Catalog, body: Body, tokens: float) -> Route:
    """Raises ModelNotFound, or ContextExceeded where `tokens` (estimated) fits none of the pools that were found."""
    kind = _KINDS[body.operation]
    pool = catalog.pools.get(body.model)
    if pool is not None and pool.kind == kind:
        return Route(_fitting((pool,), tokens), 0.0, forced=True)
    alias = catalog.aliases.get(body.model)
    pools = [catalog.pools[name] for name in alias.pools if name in catalog.pools] if alias else []
    usable = tuple(one for one in pools if one.kind == kind)
    if alias is None or not usable:
        raise ModelNotFound(_unknown(catalog, body, kind), param="model")
    return Route(_fitting(usable, tokens), alias.quality_worth, forced=False)


def _fitting(pools: tuple[Pool, ...], tokens: float) -> tuple[Pool, ...]:
    fitting = tuple(pool for pool in pools if pool.context is None or tokens <= pool.context * _SLACK)
    if not fitting:
        longest = max(pool.context or 0 for pool in pools)
        raise ContextExceeded(
            f"The prompt is about {tokens:.0f} tokens long; the longest context here is {longest}. Send less.",
            param="messages",
        )
    return fitting


def _unknown(catalog: Catalog, body: Body, kind: Kind) -> str:
    known = sorted(_names(catalog, kind))
    there = ", ".join(known) if known else "none"
    return f"There is no model {body.model[:SHOWN]!r} for {body.operation}. Models for it: {there}."


def _names(catalog: Catalog, kind: Kind) -> Iterable[str]:
    for pool in catalog.pools.values():
        if pool.kind == kind:
            yield pool.name
    for alias in catalog.aliases.values():
        if any(name in catalog.pools and catalog.pools[name].kind == kind for name in alias.pools):
            yield alias.name
