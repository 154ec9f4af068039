"""Golden files: compared, and written anew when the environment asks for it."""

import os
from pathlib import Path


def same_as_golden(path: Path, text: str) -> None:
    """`text` is what `path` holds. `GOLDEN=write pytest ...` writes it: then read the difference before committing."""
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
