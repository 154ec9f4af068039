"""Every setting, in one tree. Read once, at the edge; passed inwards as plain values.

Order: the built-in tree of the command (if it has one), the TOML file, then the environment
(`TURNOUT__GATEWAY__PORT=9000`). Unknown names are refused with their path.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import msgspec


class SettingsError(Exception):
    """A setting is missing, unknown or of the wrong type; the message names its path and what to do."""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every part of the tree refuses names it does not know."""


class Gateway(_Part, frozen=True):
    """The REST face."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_body: int = 32 * 1024 * 1024  # bytes of one request
    shutdown_grace: float = 10.0  # seconds that running answers get at shutdown
    id: str = ""  # a name of this process among several; empty: made from host and process


class Key(_Part, frozen=True):
    """An API key. Exactly one of key, key_env, key_file, sha256 says what it is."""

    name: str
    key: str | None = None
    key_env: str | None = None
    key_file: str | None = None
    sha256: str | None = None
    models: tuple[str, ...] = ()  # empty: all
    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class PoolSettings(_Part, frozen=True):
    """Where a pool's answers come from, and how it behaves. The first that is given counts: url, gguf, recipe."""

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
    minimum: int = 1
    maximum: int = 1
    idle_seconds: float = 300.0
    slots: int | None = None  # None: 4 of a replica of ours, 32 of a url
    context: int = 8192  # tokens, shared out over the slots by llama.cpp
    threads: int = 1
    prefill_rate: float = 300.0
    decode_rate: float = 60.0
    price: float = 1.0
    cold_start: float = 5.0
    queue_limit: int = 64
    queue_wait: float = 60.0
    first_byte_timeout: float = 120.0
    idle_timeout: float = 60.0

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url,) if isinstance(self.url, str) else (self.url or ())

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
    quality_worth: float = 20.0


class Database(_Part, frozen=True):
    url: str | None = None  # None: SQLite in the data folder
    keep_requests: float = 30.0  # days that the record of a request is kept


class Broker(_Part, frozen=True):
    url: str | None = None  # None: a folder in the data folder
    queue: str = "turnout"  # two deployments on one broker need two names


class Control(_Part, frozen=True):
    """The loop that watches, scales and publishes."""

    interval: float = 0.25  # seconds between looks at demand and replicas
    probe_interval: float = 1.0  # seconds between health and load probes of one replica
    poll_interval: float = 0.25  # seconds between a gateway's looks at the catalog's version


class Compression(_Part, frozen=True):
    """Which prompt forms `decide` may take. A request chooses with x-turnout-compress."""

    default: Literal["off", "lossless"] = "lossless"


class PrefixIndex(_Part, frozen=True):
    block: int = 128  # bytes of prompt text
    blocks_per_replica: int = 65536


class Classifier(_Part, frozen=True):
    artefact: str | None = None  # None: the one that ships
    margin: float = 0.05  # a gain in P(acceptable) up to this is taken for the classifier's own error, and for nothing


class Telemetry(_Part, frozen=True):
    otlp_endpoint: str | None = None  # e.g. http://collector:4318; None: no push
    export_interval: float = 15.0
    sample: float = 0.01  # share of requests with a span tree
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


def load(
    path: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    builtin: Mapping[str, Any] | None = None,
    prefix: str = "TURNOUT",
) -> Settings:
    """Merge the trees, in the order the module says. Raises SettingsError."""
    tree: dict[str, Any] = {}
    _merge(tree, builtin or {})
    if path is not None:
        _merge(tree, _read(path))
    for name, value in environ.items():
        root, *keys = name.split("__")
        if root == prefix and keys:
            _put(tree, [key.lower() for key in keys], value, name)
    try:
        settings = msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path or 'settings'}: {error}") from error
    _check(settings)
    return settings


def secret(value: str | None, env: str | None, file: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """A secret given in one of three ways, without white space around it. Raises SettingsError where there is none."""
    if value is not None:
        return value.strip()
    if env is not None:
        found = environ.get(env, "").strip()
        if not found:
            raise SettingsError(f"The environment variable {env} is named as a secret but is not set.")
        return found
    if file is not None:
        try:
            return Path(file).expanduser().read_text().strip()
        except OSError as error:
            raise SettingsError(f"The secret file {file} cannot be read: {error.strerror}.") from error
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}.") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error


def _merge(tree: dict[str, Any], other: Mapping[str, Any]) -> None:
    for name, value in other.items():
        if isinstance(value, Mapping):
            if not isinstance(tree.get(name), dict):
                tree[name] = {}
            _merge(tree[name], cast("Mapping[str, Any]", value))
        else:
            tree[name] = value


def _put(tree: dict[str, Any], keys: list[str], value: str, name: str) -> None:
    *parents, last = keys
    for key in parents:
        below: Any = tree.setdefault(key, {})
        if not isinstance(below, dict):
            raise SettingsError(f"{name}: {key} is not a table.")
        tree = cast("dict[str, Any]", below)
    tree[last] = value


def _check(settings: Settings) -> None:
    """What types cannot say."""
    for name, alias in settings.aliases.items():
        if name in settings.pools:
            raise SettingsError(f"aliases.{name}: a pool has this name already; choose another.")
        for pool in alias.pools:
            if pool not in settings.pools:
                raise SettingsError(f"aliases.{name}.pools: there is no pool {pool!r}.")
    for name, entry in settings.pools.items():
        if entry.minimum > entry.maximum:
            raise SettingsError(f"pools.{name}: minimum {entry.minimum} is above maximum {entry.maximum}.")
        if entry.slots is not None and entry.slots < 1:
            raise SettingsError(f"pools.{name}.slots: at least 1.")
    for index, key in enumerate(settings.keys):
        given = [key.key, key.key_env, key.key_file, key.sha256]
        if sum(one is not None for one in given) != 1:
            raise SettingsError(f"keys[{index}]: give exactly one of key, key_env, key_file, sha256.")
