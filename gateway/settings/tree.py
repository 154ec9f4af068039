"""The one tree of settings: every name there is, with its type, its bounds and its default."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Some = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Price = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

SCHEMES: Final = ("http://", "https://")


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every part of the tree refuses names it does not know."""


class Gateway(_Part, frozen=True):
    """The REST face."""

    host: str = "127.0.0.1"
    port: Port = 8000
    max_body: Some = 32 * 1024 * 1024  # bytes of one request
    shutdown_grace: Seconds = 10.0  # seconds that running answers get at shutdown
    id: str = ""  # a name of this process among several; empty: made from host and process


class Key(_Part, frozen=True):
    """An API key. Exactly one of key, key_env, key_file, sha256 says what it is."""

    name: str
    key: str | None = None
    key_env: str | None = None
    key_file: str | None = None
    sha256: str | None = None
    models: tuple[str, ...] = ()  # empty: all
    concurrency: Some | None = None
    requests_per_minute: Some | None = None
    tokens_per_minute: Some | None = None


class PoolSettings(_Part, frozen=True):
    """Where a pool's answers come from, and how it behaves. The first that is given counts: url, gguf, recipe."""

    enabled: bool = True  # false: as if the pool were not in the tree, nor in any alias
    url: str | tuple[str, ...] | None = None  # OpenAI-speaking servers, not ours to start
    gguf: str | None = None  # a model file, served by the local fleet
    recipe: dict[str, Any] | None = None  # built by the worker, then served by the local fleet
    simulated: dict[str, Any] | None = None  # options of the simulator; set by --simulated
    backend: Literal["openai", "llamacpp", "vllm", "tgi", "trtllm"] | None = None  # None: llamacpp for gguf and recipe
    model: str | None = None  # the name the server knows; None: asked of the server
    key: str | None = None
    key_env: str | None = None
    key_file: str | None = None
    ca: str | None = None
    kind: Literal["chat", "embed"] = "chat"
    tier: Literal["small", "large"] = "small"
    minimum: Count = 1
    maximum: Count = 1
    idle_seconds: Seconds = 300.0
    slots: Some | None = None  # None: 4 of a replica of ours, 32 of a url
    context: Some = 16384  # tokens, shared out over the slots by llama.cpp
    threads: Some | None = None  # None: the cores, shared out over our pools that keep replicas
    prefill_rate: Positive = 300.0
    decode_rate: Positive = 60.0
    price: Price = 1.0
    cold_start: Seconds = 5.0
    queue_limit: Count = 64
    queue_wait: Seconds = 60.0
    first_byte_timeout: Positive = 120.0
    idle_timeout: Positive = 60.0

    @property
    def urls(self) -> tuple[str, ...]:
        """Base addresses: without the /v1 that clients are given, and without a slash at the end."""
        given = (self.url,) if isinstance(self.url, str) else (self.url or ())
        return tuple(_base(url) for url in given)

    @property
    def ours(self) -> bool:
        """Whether the local fleet starts its replicas."""
        return not self.urls

    @property
    def slots_each(self) -> int:
        return self.slots or (4 if self.ours else 32)

    @property
    def backend_name(self) -> str:
        return self.backend or ("openai" if self.urls else "llamacpp")


class AliasSettings(_Part, frozen=True):
    """A public model name that is routed over pools. `quality_worth`: seconds of a slot for a good answer."""

    pools: tuple[str, ...]
    quality_worth: Price = 20.0


class Database(_Part, frozen=True):
    url: str | None = None  # None: SQLite in the data folder
    keep_requests: Seconds = 30.0  # days that the record of a request is kept


class Broker(_Part, frozen=True):
    url: str | None = None  # None: a folder in the data folder
    queue: str = "turnout"  # two deployments on one broker need two names


class Control(_Part, frozen=True):
    """The loop that watches, scales and publishes."""

    interval: Positive = 0.25  # seconds between looks at demand and replicas
    probe_interval: Positive = 1.0  # seconds between health and load probes of one replica
    poll_interval: Positive = 0.25  # seconds between a gateway's looks at the catalog's version


class Compression(_Part, frozen=True):
    """Which prompt forms `decide` may take. A request chooses with x-turnout-compress."""

    default: Literal["off", "lossless"] = "lossless"


class PrefixIndex(_Part, frozen=True):
    block: Some = 128  # bytes of prompt text
    blocks_per_replica: Count = 65536


class Classifier(_Part, frozen=True):
    artefact: str | None = None  # None: the one that ships
    margin: Share = 0.05  # a gain in P(acceptable) up to this is taken for the classifier's own error, and for nothing


class Telemetry(_Part, frozen=True):
    otlp_endpoint: str | None = None  # e.g. http://collector:4318; None: no push
    export_interval: Positive = 15.0
    sample: Share = 0.01  # share of requests with a span tree
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Console(_Part, frozen=True):
    enabled: bool = True
    token: str | None = None
    token_env: str | None = None
    token_file: str | None = None


class Settings(_Part, frozen=True):
    data: str = "./.turnout"  # weights, artefacts, database, logs
    gateway: Gateway = Gateway()
    keys: tuple[Key, ...] = ()
    pools: dict[str, PoolSettings] = {}
    aliases: dict[str, AliasSettings] = {}
    database: Database = Database()
    broker: Broker = Broker()
    control: Control = Control()
    compression: Compression = Compression()
    prefix: PrefixIndex = PrefixIndex()
    classifier: Classifier = Classifier()
    telemetry: Telemetry = Telemetry()
    console: Console = Console()

    @property
    def folder(self) -> Path:
        return Path(self.data).expanduser().resolve()

    @property
    def database_url(self) -> str:
        return self.database.url or f"sqlite+aiosqlite:///{self.folder / 'turnout.db'}"

    @property
    def broker_url(self) -> str:
        return self.broker.url or "filesystem://"


def _base(url: str) -> str:
    url = url.rstrip("/")
    return url if url.endswith("//v1") else url.removesuffix("/v1").rstrip("/")  # a host may be called v1
