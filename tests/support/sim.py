"""Simulated model servers for tests: in the test's own event loop, or as real processes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from engines.sim.machine import Machine
from engines.sim.options import Options
from engines.sim.server import serve

# Fast enough that a test does not wait, slow enough that things happen one after another.
QUICK = {"prefill_rate": 200_000.0, "decode_rate": 2000.0, "model": "sim"}


class SimHandle:
    """A running simulator: its base URL (no trailing slash), and what it knows of itself."""

    def __init__(self, url: str, machine: Machine) -> None:
        self.url = url
        self.machine = machine

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def state(self) -> dict[str, Any]:
        return self.machine.state()

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What was asked of it, oldest first: method, path, headers, body (text), status, ended."""
        return list(self.machine.journal)

    def bodies(self) -> list[Any]:
        """The JSON bodies it was sent, oldest first."""
        return [msgspec.json.decode(one["body"]) for one in self.machine.journal]

    async def until(self, seconds: float = 2.0, **wanted: Any) -> dict[str, Any]:
        """Wait until these values of `state` hold, e.g. `until(running=0)`. Raises TimeoutError, showing the state."""
        end = asyncio.get_running_loop().time() + seconds
        while True:
            state = self.state()
            if all(state[name] == value for name, value in wanted.items()):
                return state
            if asyncio.get_running_loop().time() > end:
                raise TimeoutError(f"not {wanted} within {seconds} s: {state}")
            await asyncio.sleep(0.005)


@asynccontextmanager
async def sim(**options: Any) -> AsyncIterator[SimHandle]:
    """A simulator in this event loop on a free port. Options: `engines.sim.options.Options`."""
    async with serve(Options(**(QUICK | options))) as server:
        yield SimHandle(server.url, server.machine)


class SimProcess:
    """A simulator as a process of its own."""

    def __init__(self, url: str, process: asyncio.subprocess.Process) -> None:
        self.url = url
        self.process = process

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def wait(self, seconds: float = 5.0) -> int:
        """Its exit code."""
        return await asyncio.wait_for(self.process.wait(), seconds)


@asynccontextmanager
async def sim_process(*arguments: str, **options: Any) -> AsyncIterator[SimProcess]:
    """`python -m engines.sim` on a free port; `arguments` as they are, `options` by name. Killed if still there at the end."""
    argv = [sys.executable, "-m", "engines.sim", *arguments]
    for name, value in (QUICK | options).items():
        flag = name.replace("_", "-")
        argv += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 10)).decode()
        assert line.startswith("listening on "), line
        yield SimProcess(line.removeprefix("listening on ").strip(), process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  or the loop warns of an unclosed pipe
