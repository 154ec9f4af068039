"""How the engines build, in the words of the builds table."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from engines import registry
from engines.artifact import Artefact
from engines.build import build
from gateway.control.builds import Work
from gateway.db.rows import ArtefactRow


def engine_build(data: Path) -> Work:
    """What builds a recipe into the data folder. It raises EngineError, OSError."""

    def work(
        recipe: dict[str, Any],
        *,
        on_progress: Callable[[float, str], None],
        cancelled: Callable[[], bool],
        log: Path,
    ) -> ArtefactRow:
        made = registry.decode_recipe(recipe)
        return row(build(made, data, on_progress=on_progress, cancelled=cancelled, log=log))

    return work


def row(artefact: Artefact) -> ArtefactRow:
    """The row of an artefact on disk."""
    manifest = artefact.manifest
    return ArtefactRow(
        digest=manifest.digest,
        engine=registry.engine_of(registry.decode_recipe(manifest.recipe)),
        file=str(artefact.path),
        bytes=manifest.bytes,
        sha256=manifest.sha256,
        manifest=msgspec.to_builtins(manifest),
        created_at=datetime.fromisoformat(manifest.created).timestamp(),
    )
