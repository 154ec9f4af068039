"""Waiting for things, and telling whether a process is still there."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T | None] | T | None], seconds: float = 20.0) -> T:
    """Ask again and again until the answer is truthy; fails after `seconds`. `look` may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = look()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {look}")


def gone(pid: int | None) -> bool:
    """Whether no process of this number runs any more; one that only waits to be reaped has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
