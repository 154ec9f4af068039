"""Whether this machine can hold one more replica."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from gateway.control.fleet.protocol import Launch

MIB: Final = 1024 * 1024
RESERVE: Final = 256 * MIB  # left to everything else


class Machine(msgspec.Struct, frozen=True):
    """What there is. `threads` may be more than the cores: replicas that idle use none."""

    threads: int
    free_memory: int | None  # bytes that can be had now; None: the system does not say
    cores: int = 1


def this_machine() -> Machine:
    """Cores this process may use, each promised twice (at least four), and the memory that is free now."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = [memory for memory in (_available(), _cgroup_room()) if memory is not None]
    return Machine(max(4, 2 * cores), min(free) if free else None, cores)


def refusal(launch: Launch, running: Iterable[Launch], starting: Iterable[Launch], machine: Machine) -> str | None:
    """Why one more replica does not fit, or None. Memory of those still starting is not yet missing from the free."""
    starting = tuple(starting)
    threads = sum(other.threads for other in (*running, *starting))
    if threads + launch.threads > machine.threads:
        return f"needs {launch.threads} threads, and {threads} of {machine.threads} are taken"
    if machine.free_memory is None or not launch.memory:
        return None
    free = machine.free_memory - RESERVE - sum(other.memory for other in starting)
    if launch.memory > free:
        return f"needs about {launch.memory // MIB} MiB of memory, and {max(0, free) // MIB} MiB are free"
    return None


def _available(path: Path = Path("/proc/meminfo")) -> int | None:
    try:
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None


def _cgroup_room(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What a container's own limit leaves (cgroup v2); page cache counts as free."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - used + int(stat.get("file", 0))
