"""What the overview shows, as plain values: the console's stream sends them as they are."""

from typing import Literal

import msgspec

from telemetry.window import Rates

Level = Literal["good", "warn", "bad"]
Status = Literal["ready", "growing", "shrinking", "full", "failing", "starting", "building", "at zero", "down"]


class Tile(msgspec.Struct, frozen=True):
    """One replica on the board. `blocked`: this gateway sends it nothing for a while, since it failed."""

    id: str
    state: str
    running: int
    waiting: int
    slots: int
    kv_used: float | None  # share 0..1; None: the server does not say
    reason: str
    blocked: bool = False


class PoolView(msgspec.Struct, frozen=True):
    """One pool: its board, its last minute, and why it has as many replicas as it has."""

    name: str
    tier: str
    kind: str
    model: str
    status: Status
    waiting: int  # in this gateway's queue
    replicas: tuple[Tile, ...]
    rates: Rates
    why: str


class Event(msgspec.Struct, frozen=True):
    """Something that changed, and why. `at`: Unix seconds."""

    at: float
    title: str
    text: str
    level: Level = "good"


class Verdict(msgspec.Struct, frozen=True):
    """Is it well? In words with numbers."""

    level: Level
    text: str


class Overview(msgspec.Struct, frozen=True):
    """One picture; `at` in Unix seconds, rates over the last minute of this gateway.

    `stale`: the database does not answer, and why. `silent`: seconds since the control loop's last sign of life,
    where that is too long.
    """

    at: float
    version: int
    system: Rates
    waiting: int
    running: int
    pools: tuple[PoolView, ...]
    events: tuple[Event, ...]
    stale: str = ""
    silent: float | None = None
    verdict: Verdict = Verdict("good", "")


class Moment(msgspec.Struct, frozen=True):
    """The whole system's rates as they stood at `at` (Unix seconds)."""

    at: float
    system: Rates
