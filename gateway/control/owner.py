"""Who holds a build: a process of some host, and whether it still lives."""

import os
import socket
from pathlib import Path

import msgspec

SILENCE = 30.0  # seconds without a sign of life after which a worker of another host counts as dead


class _Seen(msgspec.Struct, frozen=True):
    """A process as /proc shows it. `started`: clock ticks since the host's start; tells it from a later namesake."""

    started: str
    dead: bool  # nobody has fetched its exit status yet


def this_process() -> str:
    """The name under which this process holds builds: host:pid:start."""
    seen = _look(os.getpid())
    return f"{socket.gethostname()}:{os.getpid()}:{seen.started if seen else '-'}"


def alive(owner: str, heartbeat_at: float | None, now: float) -> bool:
    """Whether that process lives: asked of the system on its own host, else judged by its last sign of life."""
    host, _, rest = owner.partition(":")
    pid, _, started = rest.partition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return heartbeat_at is not None and now - heartbeat_at < SILENCE
    if started == "-":
        return _runs(int(pid))
    seen = _look(int(pid))
    return seen is not None and not seen.dead and seen.started == started


def _look(pid: int) -> _Seen | None:
    """None: no such process, or a system without /proc."""
    try:
        # The second field is the program's name in brackets and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _Seen(started=fields[19], dead=fields[0] in "ZX")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
