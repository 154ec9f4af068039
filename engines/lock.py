"""A lock between processes that a killed owner cannot keep: flock on a small file that stays."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

_LOOK: Final = 0.1  # seconds between tries


@contextlib.contextmanager
def exclusive(path: Path, waiting: Callable[[], None] | None = None) -> Generator[None]:
    """Hold the lock for the length of the block, alone among processes and threads.

    `waiting` is called before each further try, about ten times a second; what it raises ends the waiting.
    """
    with _opened(path) as descriptor:
        while not _taken(descriptor):
            if waiting is not None:
                waiting()
            time.sleep(_LOOK)
        yield


@contextlib.contextmanager
def exclusive_if_free(path: Path) -> Generator[bool]:
    """Like `exclusive`, but never waits: the block learns whether it holds the lock."""
    with _opened(path) as descriptor:
        yield _taken(descriptor)


@contextlib.contextmanager
def _opened(path: Path) -> Generator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Python's descriptors are not inherited: a command that outlives its parent does not keep the lock.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)  # releases


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
