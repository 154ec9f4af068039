"""One immutable picture of keys, pools and aliases, swapped whole; and the counters that live between swaps."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from backends.types import Backend, Load, Replica, ReplicaId

Tier = Literal["small", "large"]
Kind = Literal["chat", "embed"]


class Caller(msgspec.Struct, frozen=True):
    """Whom a key belongs to and what it may do. None: no limit."""

    id: str  # the key's name, as metrics and records show it
    models: frozenset[str] = frozenset()  # empty: every model
    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def may_use(self, model: str) -> bool:
        return not self.models or model in self.models


class Pool(msgspec.Struct, frozen=True):
    """Replicas that serve one artefact; its record gives the speeds and the price."""

    name: str
    backend: str = "openai"
    kind: Kind = "chat"
    tier: Tier = "small"
    served_model: str = ""
    replicas: tuple[Replica, ...] = ()  # ready ones only
    rests_at_zero: bool = False  # zero replicas are a normal state
    scalable: bool = False  # a fleet may start replicas: a pool at zero is a candidate that costs its cold start
    cold_start: float = 5.0  # seconds from wanting a replica to its first token
    context: int | None = None  # tokens one request may use; None: not known
    prefill_rate: float = 2000.0  # tokens/s
    decode_rate: float = 50.0  # tokens/s of one request
    price: float = 1.0  # relative, a second of one slot
    queue_limit: int = 64  # requests that may wait
    queue_wait: float = 30.0  # seconds one may wait
    first_byte_timeout: float = 120.0
    idle_timeout: float = 60.0


class Alias(msgspec.Struct, frozen=True):
    """A public model name that is routed. `quality_worth`: what a good answer is worth, in seconds of a slot."""

    name: str
    pools: tuple[str, ...]
    quality_worth: float = 20.0


class Catalog(msgspec.Struct, frozen=True):
    """All the request path knows of the outside. Callers by SHA-256 (hex) of their key."""

    version: int = 0
    callers: Mapping[str, Caller] = {}
    pools: Mapping[str, Pool] = {}
    aliases: Mapping[str, Alias] = {}


class Live:
    """What changes between snapshots: requests in flight and waiting, loads seen, token ratios learned."""

    def __init__(self) -> None:
        self.inflight: dict[ReplicaId, int] = {}  # of each replica's newest incarnation; absent: none
        self.leases: dict[tuple[ReplicaId, str], int] = {}  # in flight by id and incarnation; see lease.py
        self.incarnations: dict[ReplicaId, str] = {}  # the one that `inflight` shows
        self.waiting: dict[str, int] = {}  # by pool
        self.loads: dict[ReplicaId, Load] = {}
        self.blocked: set[ReplicaId] = set()  # the breaker holds these back
        self.tokens_per_byte: dict[str, float] = {}  # by pool, learned from usage
        self.prompt_bytes: dict[str, float] = {}  # by pool, of one prompt, averaged; prompt_tokens likewise
        self.prompt_tokens: dict[str, float] = {}
        self.output_tokens: dict[str, float] = {}  # by pool, tokens of one answer, learned from usage


Backends = Mapping[str, Backend]
