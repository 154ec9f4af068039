"""Run one command of a build: its own process group, its lines into a log, its progress read, ended when asked."""

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import IO, Final

from engines import progress
from engines.errors import BuildCancelled, BuildFailed
from engines.progress import Progress
from engines.recipe import Command

_LOOK: Final = 0.1  # seconds between looks at whether the build is still wanted
_GRACE: Final = 2.0  # seconds between asking a group to end and ending it
_PATIENCE: Final = 1.0  # seconds that lines may still come after the process has ended
_TAIL: Final = 20  # last lines that an error shows

_Lines = queue.SimpleQueue[str | None]  # None: no more will come


def run(
    command: Command, *, log: IO[str], on_progress: Callable[[Progress], None], cancelled: Callable[[], bool]
) -> None:
    """Blocks until the command has ended. Raises BuildFailed or BuildCancelled; no process of its group is left."""
    log.write(f"$ {' '.join(command.argv)}\n")
    log.flush()
    tail: deque[str] = deque(maxlen=_TAIL)
    with _started(command) as process:
        for line in _lines(process, cancelled):
            log.write(line)
            log.flush()
            seen = progress.parse(line)
            if seen is None:
                tail.append(line.rstrip())
            else:
                on_progress(seen)
    if process.returncode:
        raise BuildFailed(f"{command.name} ended with {_ending(process.returncode)}.", tuple(tail))


@contextlib.contextmanager
def _started(command: Command) -> Generator[subprocess.Popen[str]]:
    try:
        process = subprocess.Popen(  # noqa: S603 - argv of our own plans, never a shell
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise BuildFailed(f"{command.name} cannot be started: {command.argv[0]}: {error.strerror}.") from error
    try:
        yield process
    finally:
        if process.poll() is None:
            _end_group(process)


def _lines(process: subprocess.Popen[str], cancelled: Callable[[], bool]) -> Iterator[str]:
    """What the process writes, until it ends. A thread reads, so that a silent process can be cancelled too."""
    lines: _Lines = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, lines), name="build output", daemon=True)
    reader.start()
    ended: float | None = None
    while True:
        if cancelled():
            raise BuildCancelled("The build was cancelled.")
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=_LOOK)
            if line is None:
                break
            yield line
            continue
        if ended is None and process.poll() is not None:
            ended = time.monotonic()
        if ended is not None and time.monotonic() - ended > _PATIENCE:
            _end_group(process)  # something that it started holds its output open
            break
    reader.join(_PATIENCE)
    while process.poll() is None:  # it closed its output and works on
        if cancelled():
            raise BuildCancelled("The build was cancelled.")
        time.sleep(_LOOK / 10)


def _read(process: subprocess.Popen[str], lines: _Lines) -> None:
    if process.stdout is not None:
        with process.stdout as output:
            for line in output:
                lines.put(line)
    lines.put(None)


def _end_group(process: subprocess.Popen[str]) -> None:
    """Ask the group to end, and kill what has not after a while. The group's number is the process's."""
    _signal_group(process, signal.SIGTERM)
    end = time.monotonic() + _GRACE
    while process.poll() is None and time.monotonic() < end:
        time.sleep(_LOOK / 10)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone; macOS says the latter of zombies
        os.killpg(process.pid, number)


def _ending(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"code {code}"
