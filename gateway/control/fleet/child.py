"""One child process of ours: started in its own group, watched through its log, never left behind."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

POLL: Final = 0.05  # seconds between looks at the log of a starting child
KEEP: Final = 10 * 1024 * 1024  # bytes of log that one file may hold before it is set aside


class NotReady(Exception):
    """A child ended, or its time ran out, before it had said what was waited for."""


class Child:
    """A running child. Its stdin is a pipe we hold: when we die, however, it reads the end of it and leaves."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, start: int) -> None:
        self._process = process
        self._start = start  # where in the log this process begins
        self.log = log
        self.incarnation = f"{process.pid}-{time.time_ns() // 1_000_000:x}"

    @classmethod
    async def start(cls, argv: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> Self:
        """Start a program; everything it prints is appended to `log`. `environ` None: our own. Raises OSError."""
        _set_aside(log)
        with log.open("ab") as out:
            out.write(f"--- {time.strftime('%Y-%m-%dT%H:%M:%S%z')} {' '.join(argv)}\n".encode())
            out.flush()
            start = out.tell()  # now: the child shares this file's position, and moves it as it prints
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=out,
                stderr=out,
                env={**(os.environ if environ is None else environ), "PYTHONUNBUFFERED": "1"},
                process_group=0,  # a Ctrl-C at the terminal reaches us alone; we stop our children in order
            )
            return cls(process, log, start)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    @property
    def code(self) -> int | None:
        """The exit status; negative: the signal; None while it runs."""
        return self._process.returncode

    async def exited(self) -> str:
        """Wait for the end; say how it came."""
        code = await self._process.wait()
        return f"exited with code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    async def printed(self, start: str, *, within: float) -> str:
        """The rest of the first line that begins with `start`. Raises NotReady after `within` seconds or at the end."""
        deadline = time.monotonic() + within
        while True:
            running = self.running
            for line in self._lines():
                if line.startswith(start):
                    return line.removeprefix(start).strip()
            if not running:
                raise NotReady(await self.exited())
            if time.monotonic() > deadline:
                raise NotReady(f"not ready after {within:.0f} s")
            await asyncio.sleep(POLL)

    def last_lines(self, count: int = 5) -> tuple[str, ...]:
        """The end of what this process printed: why it went, most likely."""
        return tuple(line for line in self._lines() if line.strip())[-count:]

    async def stop(self, grace: float) -> None:
        """SIGTERM, wait, then SIGKILL for it and whatever it started."""
        if self.running:
            with suppress(ProcessLookupError):
                self._process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace)
        await self.kill()

    async def kill(self) -> None:
        """End the whole group at once; an empty group is fine."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def _lines(self) -> list[str]:
        with self.log.open("rb") as file:
            file.seek(self._start)
            return file.read().decode(errors="replace").split("\n")


@asynccontextmanager
async def child(
    argv: Sequence[str], log: Path, environ: Mapping[str, str] | None = None
) -> AsyncGenerator[Child, None]:
    """A child that is gone when the context is left: leaving it while it runs kills it."""
    process = await Child.start(argv, log, environ)
    try:
        yield process
    finally:
        await process.kill()


def pause_after(failures: int) -> float:
    """Seconds until the next start after so many failures in a row: 0.5, 1, 2, ... 30."""
    return float(min(30.0, 0.5 * 2 ** min(failures - 1, 10)))


async def first(one: Coroutine[Any, Any, object], other: Coroutine[Any, Any, object]) -> object:
    """The result of whichever ends first; the other is cancelled. `one` counts where both have ended."""
    tasks = (asyncio.ensure_future(one), asyncio.ensure_future(other))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else tasks[1].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _set_aside(log: Path) -> None:
    with suppress(FileNotFoundError):
        if log.stat().st_size > KEEP:
            log.replace(log.with_suffix(".log.1"))
