"""How far a start has come, told on one line that updates itself (or one line a change, where it is no terminal)."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TextIO

import msgspec

from gateway.db.rows import BuildRow, ReplicaRow
from gateway.settings import PoolSettings

_ENDING: Final = re.compile(r"\S+ ended with .*\.")  # how a program of a build went, without a reason


class PoolView(msgspec.Struct, frozen=True):
    """One pool on its way up. `stuck`: it will not come up without help, or not soon; `words` say why."""

    pool: str
    state: Literal["ready", "working", "stuck"]
    words: str
    reason: str = ""  # more than fits a line that tells of all pools
    log: str = ""


def outlook(
    pools: Mapping[str, PoolSettings],
    digests: Mapping[str, str],
    builds: Sequence[BuildRow],
    replicas: Sequence[ReplicaRow],
) -> tuple[PoolView, ...]:
    """Where every pool stands that should have a replica, in the order of the settings. `digests`: recipes by pool."""
    by_digest = {build.digest: build for build in builds}
    return tuple(
        _view(
            name,
            entry,
            by_digest.get(digests.get(name, "")),
            [row for row in replicas if row.pool == name],
        )
        for name, entry in pools.items()
        if entry.minimum > 0 or not entry.ours
    )


def _view(name: str, entry: PoolSettings, build: BuildRow | None, rows: Sequence[ReplicaRow]) -> PoolView:
    ready = sum(row.state == "ready" for row in rows)
    wanted = entry.minimum if entry.ours else 1
    if ready >= wanted:
        return PoolView(name, "ready", "ready")
    if not rows and build is not None and build.state != "done":
        return _building(name, build)
    failing = [row.reason for row in rows if row.state == "gone" and row.reason]
    if failing:
        return PoolView(name, "stuck", failing[0])
    if not entry.ours:
        reason = next((row.reason for row in rows if row.reason), "not probed yet")
        return PoolView(name, "stuck", reason if entry.urls[0] in reason else f"{entry.urls[0]}: {reason}")
    counted = f" {ready} of {wanted}" if wanted > 1 else ""
    return PoolView(name, "working", f"starting{counted}" if rows else "waiting")


def _building(name: str, build: BuildRow) -> PoolView:
    if build.state == "queued":
        return PoolView(name, "working", "build queued")
    if build.state == "running":
        text = f": {build.message}" if build.message else ""
        return PoolView(name, "working", f"building {build.progress:.0%}{text}")
    return PoolView(name, "stuck", f"build {build.state}", brief(build.message) or "no reason given", build.log)


def brief(message: str) -> str:
    """The line of a build's many that says what was wrong; all of them are in its log."""
    lines = [line.removeprefix("error: ").strip() for line in message.splitlines() if line.strip()]
    return next((line for line in lines if not _ENDING.fullmatch(line)), lines[0] if lines else "")


def line(views: Sequence[PoolView]) -> str:
    """All pools in one line."""
    return " | ".join(f"{view.pool}: {view.words}" for view in views)


class Ticker:
    """One line that is written over, or new lines where `out` is no terminal. `width` gives the columns there are."""

    def __init__(self, out: TextIO, width: Callable[[], int]) -> None:
        self._out = out
        self._live = out.isatty()
        self._width = width
        self._shown = ""

    def show(self, text: str) -> None:
        if text == self._shown:
            return
        if self._live:
            self._out.write(f"\r\x1b[K{text[: max(10, self._width() - 1)]}")
        elif _without_numbers(text) != _without_numbers(self._shown):  # a log wants each stage once, not each percent
            self._out.write(f"{text}\n")
        self._shown = text
        self._out.flush()

    def tell(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._out.write(f"{text}\n")
        self._out.flush()

    def clear(self) -> None:
        if self._live and self._shown:
            self._out.write("\r\x1b[K")
            self._out.flush()
        self._shown = ""


def _without_numbers(text: str) -> str:
    return "".join(letter for letter in text if not letter.isdigit())
