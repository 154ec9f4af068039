"""Run a build plan so that an artefact is published whole or not at all.

One build a digest, held by a lock that a killed process loses. Everything is made in a staging folder on the
artefacts' own disk; the manifest is written last and the folder takes its place by one rename.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO, Final

import msgspec

from engines import artifact, command, registry
from engines.artifact import Artefact, Manifest, Origin
from engines.errors import BuildCancelled, BuildFailed
from engines.lock import exclusive, exclusive_if_free
from engines.progress import Progress
from engines.recipe import BuildPlan
from engines.registry import AnyRecipe

OnProgress = Callable[[float, str], None]
Planner = Callable[[AnyRecipe, Path, Path], BuildPlan]

_SPARE: Final = 64 * 1024 * 1024  # bytes of disk to leave free


def build(
    recipe: AnyRecipe,
    data: Path,
    *,
    on_progress: OnProgress,
    cancelled: Callable[[], bool],
    log: Path,
    planner: Planner = registry.plan,
) -> Artefact:
    """The artefact of `recipe` below the data folder, built if it is not there. Blocks; may be called from a thread.

    A second caller for the same recipe waits for the first and finds its artefact. `on_progress` gets the share of the
    whole build (0 to 1) and a text. Raises BuildFailed, BuildCancelled, SourceError.
    """
    data = data.absolute()
    artefacts, staging = artifact.artefacts_folder(data), data / "staging"

    def waiting() -> None:
        if cancelled():
            raise BuildCancelled("The build was cancelled while it waited for another one.")
        on_progress(0.0, "waiting for another build of the same recipe")

    if found := artifact.find(artefacts, recipe.digest):
        return found
    with exclusive(_lock(staging, recipe.digest), waiting):
        if found := artifact.find(artefacts, recipe.digest):
            return found
        sweep(staging, recipe.digest)
        work = Path(tempfile.mkdtemp(prefix=f"{recipe.digest}-", dir=staging))
        try:
            return _run(recipe, planner(recipe, work, data / "sources"), work, artefacts, on_progress, cancelled, log)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def sweep(staging: Path, held: str | None = None) -> None:
    """Remove what killed builds have left: folders whose lock is free, and those of `held`, whose lock is ours."""
    for folder in [entry for entry in staging.iterdir() if entry.is_dir()] if staging.is_dir() else []:
        digest = folder.name.partition("-")[0]
        if digest == held:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with exclusive_if_free(_lock(staging, digest)) as free:
            if free:
                shutil.rmtree(folder, ignore_errors=True)


def _lock(staging: Path, digest: str) -> Path:
    return staging / f"{digest}.lock"


def _run(
    recipe: AnyRecipe,
    plan: BuildPlan,
    work: Path,
    artefacts: Path,
    on_progress: OnProgress,
    cancelled: Callable[[], bool],
    log: Path,
) -> Artefact:
    _check_disk(plan, work)
    start = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as lines:
        _commands(plan, lines, on_progress, cancelled)
    output = work / plan.output
    if not output.is_file():
        raise BuildFailed(f"The build ended well but made no {plan.output}.")
    manifest = Manifest(
        digest=plan.digest,
        recipe=registry.encode_recipe(recipe),
        file=plan.output,
        bytes=output.stat().st_size,
        sha256=artifact.sha256_of(output),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - start, 3),
        tools=_versions(plan.tools),
        licence=plan.licence,
        made_from=_origin(plan),
    )
    return publish(manifest, work, artefacts)


def _commands(plan: BuildPlan, log: IO[str], on_progress: OnProgress, cancelled: Callable[[], bool]) -> None:
    for index, one in enumerate(plan.commands):

        def tell(seen: Progress, done: int = index, name: str = one.name) -> None:
            on_progress((done + seen.fraction) / len(plan.commands), f"{name}: {seen.text}")

        tell(Progress(0.0, "started"))
        command.run(one, log=log, on_progress=tell, cancelled=cancelled)


def publish(manifest: Manifest, work: Path, artefacts: Path) -> Artefact:
    """Give the finished staging folder its name. Only the model and the manifest go along."""
    for entry in work.iterdir():
        if entry.name != manifest.file:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    _sync(work / manifest.file)
    note = work / artifact.MANIFEST
    note.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    _sync(note)
    _sync(work)
    artefacts.mkdir(parents=True, exist_ok=True)
    target = artefacts / manifest.digest
    if target.exists():
        # `find` did not accept it, and the lock is ours: it is damaged
        shutil.rmtree(target)
    work.chmod(0o755)  # staging folders are private
    work.rename(target)
    _sync(artefacts)
    return Artefact(target, manifest)


def _check_disk(plan: BuildPlan, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if plan.disk + _SPARE > free:
        raise BuildFailed(
            f"The build may need {plan.disk / 1e6:.0f} MB in {folder.parent}, where {free / 1e6:.0f} MB are free."
        )


def _versions(names: Iterable[str]) -> dict[str, str]:
    return {name: metadata.version(name) for name in names}


def _origin(plan: BuildPlan) -> Origin | None:
    if not plan.source:
        return None
    source = Path(plan.source)
    return Origin(source.name, source.stat().st_size, artifact.sha256_of(source))


def _sync(path: Path) -> None:
    """Bring a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
