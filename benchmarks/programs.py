"""Programs under measurement: started on one core, their CPU time and memory read from /proc."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

START = 30.0  # seconds a program gets to be ready
STOP = 10.0  # seconds it gets to leave
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Program:
    """A running program and its children."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url

    def cpu(self) -> float:
        """Seconds of user and system time so far, of the process and every live descendant."""
        return sum(float(stat[11]) + float(stat[12]) for stat in self._stats()) / _TICK

    def memory(self) -> float:
        """Resident memory of the same processes, in megabytes."""
        return sum(int(stat[21]) for stat in self._stats()) * _PAGE / 1e6

    def _stats(self) -> list[list[str]]:
        """The fields of /proc/PID/stat from the third (state) on, for the whole tree."""
        every = dict(filter(None, (_stat(path) for path in Path("/proc").glob("[0-9]*"))))
        tree = {self.process.pid}
        grown = True
        while grown:
            more = {pid for pid, stat in every.items() if int(stat[1]) in tree} - tree
            tree |= more
            grown = bool(more)
        return [every[pid] for pid in tree if pid in every]


def _stat(path: Path) -> tuple[int, list[str]] | None:
    try:
        return int(path.name), (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has just ended
        return None


@contextmanager
def running(
    argv: Sequence[str], *, core: int | None, log: Path, url: str | None = None, path: str = "/"
) -> Generator[Program]:
    """Start a program on one core, its stderr going to `log`.

    It is ready when `url`+`path` answers 200; without `url`, when it prints `listening on URL`.
    """
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE if url is None else subprocess.DEVNULL,
            stderr=stderr,
            text=True,
            preexec_fn=(lambda: os.sched_setaffinity(0, {core})) if core is not None else None,  # noqa: PLW1509  no threads
        )
    try:
        yield Program(process, _announced(process, log) if url is None else _answering(process, url, path, log))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _announced(process: "subprocess.Popen[str]", log: Path) -> str:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line.startswith("listening on "):
        raise RuntimeError(f"{process.args} did not start: {line!r}\n{log.read_text()[-2000:]}")
    return line.removeprefix("listening on ").strip()


def _answering(process: "subprocess.Popen[str]", url: str, path: str, log: Path) -> str:
    end = time.monotonic() + START
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url + path, timeout=2):
                return url
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"{process.args} was not ready within {START:.0f} s\n{log.read_text()[-2000:]}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def cores() -> tuple[int | None, int | None]:
    """One core for what is measured, one for everything else; (None, None) where there is only one, or no say in it."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


def python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)
