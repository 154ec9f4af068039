"""What the repositories give back: frozen values, never live rows."""

from typing import Any, Literal

import msgspec

ReplicaState = Literal["joining", "ready", "draining", "gone"]
BuildState = Literal["queued", "running", "done", "failed", "cancelled"]


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model server of a pool, as the control loop last saw it. Only a `ready` one gets requests."""

    id: str
    pool: str
    url: str  # scheme://host:port, no trailing slash
    served_model: str = ""
    incarnation: str = ""  # changes when the process behind the same id does
    slots: int = 1
    state: ReplicaState = "joining"
    pid: int | None = None  # on the control loop's host; None: not started by us
    running: int = 0
    waiting: int = 0
    kv_used: float | None = None  # share 0..1; None: the server does not say
    reason: str = ""  # why it is in this state, for people
    changed_at: float = 0.0  # Unix seconds of the last change of state


class DemandRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway says of one pool."""

    pool: str
    running: int = 0
    waiting: int = 0
    arrived: int = 0  # requests ever, since that gateway started
    last_request_at: float | None = None  # Unix seconds; None: not one yet


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What all gateways say of one pool. No requests is zero; no fresh report is unknown: `seen` is False.

    `arrived` counts stale reports too, so that it does not fall when a gateway stops; it falls only when a gateway
    comes back under the same name, or old reports are pruned: take a negative difference for zero.
    """

    running: int = 0
    waiting: int = 0
    arrived: int = 0
    last_request_at: float | None = None
    seen: bool = False


class BuildRow(msgspec.Struct, frozen=True, kw_only=True):
    """One engine build; there is one row for each recipe digest. Times in Unix seconds."""

    digest: str
    recipe: dict[str, Any]
    pool: str | None = None  # the pool that asked first
    state: BuildState = "queued"
    progress: float = 0.0  # 0..1
    message: str = ""
    attempts: int = 0
    queued_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    log: str = ""  # path of the log file, on the worker's host
    owner: str = ""  # host:pid:start of the worker that runs it
    heartbeat_at: float | None = None
    cancel: bool = False  # somebody wants it stopped

    @property
    def open(self) -> bool:
        return self.state in ("queued", "running")


class ArtefactRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a build made: a file or folder under the data folder, named by its recipe's digest."""

    digest: str
    engine: str
    file: str  # path
    bytes: int
    sha256: str
    manifest: dict[str, Any] = {}
    created_at: float = 0.0


class ScaleDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a pool's wanted replica count, and why."""

    at: float
    pool: str
    before: int
    after: int
    reason: str
    id: int = 0  # given by the database
