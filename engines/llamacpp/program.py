"""What the programs of llama.cpp builds share: how they say that they are done, and that they failed."""

import sys
from collections.abc import Callable
from pathlib import Path

from engines.errors import EngineError
from engines.progress import report


def run(work: Callable[[], Path]) -> int:
    """The exit code of a program that makes one file. Errors are told in one line, without a traceback."""
    try:
        made = work()
        report(1.0, f"{made.name}: {made.stat().st_size / 1e6:.0f} MB")
    except BrokenPipeError:
        return 1  # the build that reads our lines is gone
    except (EngineError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
