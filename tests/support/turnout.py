"""`turnout up` as a real process: started, read, asked, and looked for after its end."""

import json
import os
import re
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.processes import gone

ROOT = Path(__file__).parents[2]


class Up:
    """One running `turnout up` and what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], data: Path, errors: Path) -> None:
        self.process = process
        self.data = data
        self.errors = errors
        self.text = ""

    @property
    def url(self) -> str:
        return self._found(r"API +(http\S+)/v1")

    @property
    def key(self) -> str:
        return self._found(r"Key +(\S+)")

    @property
    def console(self) -> str:
        return self._found(r"Console +(http\S+)")

    @property
    def curl(self) -> str:
        return self._found(r"^(curl .*)$")

    def _found(self, pattern: str) -> str:
        match = re.search(pattern, self.text, re.MULTILINE)
        assert match, self.text
        return match[1]

    def read(self, seconds: float) -> None:
        """Read standard output until the line to try is there."""
        out = self.process.stdout
        assert out is not None
        end = time.monotonic() + seconds
        while not re.search(r"^curl .*\n", self.text, re.MULTILINE):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            if select.select([out], [], [], 0.2)[0]:
                self.text += os.read(out.fileno(), 65536).decode()

    def said(self) -> str:
        return f"{self.text}\n{self.errors.read_text()}"

    def ask(self, path: str, body: dict[str, Any] | None = None, timeout: float = 30.0) -> tuple[Any, dict[str, str]]:
        """The JSON answer and its headers (lower-case names)."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return json.load(reply), {name.lower(): value for name, value in reply.headers.items()}

    def descendants(self) -> list[int]:
        """Every process that it started, and those that these started."""
        return descendants(self.process.pid)


@contextmanager
def turnout_up(data: Path, *options: str, seconds: float = 60.0, ready: bool = True) -> Iterator[Up]:
    """A running `turnout up`; at the end whatever is left of it is killed."""
    errors = data.parent / f"{data.name}.err"
    with errors.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", "up", "--data", str(data), *options],
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env=environment(),
            process_group=0,
        )
    up = Up(process, data, errors)
    pids = [process.pid]
    try:
        if ready:
            up.read(seconds)
        pids += up.descendants()
        yield up
    finally:
        for pid in {*pids, *up.descendants()}:
            if not gone(pid):
                os.kill(pid, 9)
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def run_turnout(*arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """A `turnout` command from start to end."""
    argv = [sys.executable, "-m", "gateway.cli", *arguments]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=seconds, cwd=ROOT, env=environment(), check=False
    )


def environment() -> dict[str, str]:
    """Ours, with one place for byte code: dozens of processes would each compile everything anew."""
    return {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(ROOT / ".turnout-test" / "bytecode"),
    }


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def left_of(pids: Sequence[int], seconds: float = 20.0) -> list[str]:
    """What still runs of these after at most so many seconds; empty is good."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids if not gone(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return [f"{pid} {command_line(pid)}" for pid in left]
