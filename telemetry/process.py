"""What this process uses: CPU time, memory, descriptors; and how late its event loop is."""

import asyncio
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from telemetry import names
from telemetry.instruments import Instruments

_STATM = Path("/proc/self/statm")
_DESCRIPTORS = Path("/proc/self/fd")


def watch_process(instruments: Instruments) -> None:
    """Have this process's own figures read whenever the metrics are."""
    instruments.watch(names.CPU_TIME, lambda: {(): cpu_seconds()})
    instruments.watch(names.MEMORY, lambda: {(): resident_bytes()})
    if _DESCRIPTORS.exists():
        instruments.watch(names.DESCRIPTORS, lambda: {(): sum(1 for _ in _DESCRIPTORS.iterdir())})


async def watch_loop(tell: Callable[[float], None], clock: Callable[[], float], interval: float = 0.1) -> None:
    """Sleep for `interval` again and again and tell by how many seconds each wake was late. Runs until cancelled."""
    while True:
        before = clock()
        await asyncio.sleep(interval)
        tell(max(0.0, clock() - before - interval))


def cpu_seconds() -> float:
    """User and system time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_bytes() -> int:
    """Resident memory now where the system tells it (Linux), else the most there ever was."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # macOS counts bytes, others kilobytes
