"""A real build worker whose builds are make-believe: `python -m tests.support.worker_process CONFIG`."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engines.recipe import Recipe
from gateway.db.rows import ArtefactRow
from gateway.settings import load
from gateway.worker import run_worker


class PretendRecipe(Recipe, frozen=True, tag="pretend"):
    """Takes `seconds`, telling its progress; fails where `failure` says why."""

    seconds: float = 0.2
    failure: str = ""


def pretend(
    recipe: dict[str, Any], *, on_progress: Callable[[float, str], None], cancelled: Callable[[], bool], log: Path
) -> ArtefactRow:
    """Write a line to the log at the start of each attempt, and a file at the end."""
    made = msgspec.convert(recipe, PretendRecipe)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as lines:
        lines.write("an attempt\n")
    began = time.monotonic()
    while (spent := time.monotonic() - began) < made.seconds:
        if cancelled():
            raise InterruptedError("told to stop")
        on_progress(spent / made.seconds, "pretending")
        time.sleep(0.02)
    if made.failure:
        raise ValueError(made.failure)
    file = log.with_suffix(".made")
    file.write_text(made.source)
    return ArtefactRow(
        digest=made.digest, engine="pretend", file=str(file), bytes=len(made.source), sha256="0" * 64, created_at=1.0
    )


if __name__ == "__main__":
    sys.exit(run_worker(load(Path(sys.argv[1])), pretend))
