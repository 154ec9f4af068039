"""What every way of running replicas can do, and how it speaks of them."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

Phase = Literal["waiting", "starting", "running", "backoff", "draining"]


class Launch(msgspec.Struct, frozen=True):
    """How to start one replica of a pool, and what it takes of the machine."""

    argv: tuple[str, ...]  # prints `listening on URL` when it serves; leaves when its stdin ends
    memory: int = 0  # bytes, an estimate; 0: not known
    threads: int = 1
    environ: Mapping[str, str] = {}  # beside our own environment: what no command line should show
    start_timeout: float = 120.0  # seconds until it must listen
    drain: float = 10.0  # seconds it gets for running requests after SIGTERM


class Unit(msgspec.Struct, frozen=True):
    """One replica as its fleet sees it. Whether it is healthy is for the probes to say."""

    id: str
    pool: str
    phase: Phase
    url: str = ""  # known from `running` on
    incarnation: str = ""  # changes with the process behind the id
    reason: str = ""  # why it is not running, in words
    pid: int | None = None


class Fleet(Protocol):
    """Runs the replicas of some pools. The control loop is the only one who calls `scale`."""

    async def observe(self) -> Sequence[Unit]:
        """Every replica there is, at whatever phase; those that have gone are no longer named."""
        ...

    async def scale(self, pool: str, replicas: int, launch: Launch | None) -> None:
        """Bring a pool to this many replicas; returns at once. `launch` is what new processes are started with.

        Replicas that are over drain first: they stay in sight as `draining` until they have gone.
        """
        ...

    async def drain(self, replica: str) -> None:
        """Let one replica finish what it does and go; returns at once. The pool is refilled by the next `scale`."""
        ...
