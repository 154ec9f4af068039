"""What a finished build leaves: a folder named by the recipe's digest, with a manifest beside the model.

Layout: `<data>/artefacts/<digest>/{manifest.json, model.gguf}`. The folder appears under its name in one step, whole.
"""

import hashlib
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.errors import ArtefactDamaged

MANIFEST: Final = "manifest.json"


class Origin(msgspec.Struct, frozen=True):
    """The weights that a build read."""

    file: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an artefact. Fields are added, never renamed: old manifests stay readable."""

    digest: str
    recipe: dict[str, Any]
    file: str  # the model, inside the artefact's folder
    bytes: int
    sha256: str
    created: str  # ISO 8601, UTC
    seconds: float  # that the build took
    tools: dict[str, str]  # versions by name
    licence: str | None = None
    made_from: Origin | None = None


class Artefact(msgspec.Struct, frozen=True):
    """A manifest and where it lies."""

    folder: Path
    manifest: Manifest

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def path(self) -> Path:
        """The model file, to be served."""
        return self.folder / self.manifest.file


def artefacts_folder(data: Path) -> Path:
    return data / "artefacts"


def find(artefacts: Path, digest: str) -> Artefact | None:
    """The artefact, if it is there whole (its size is looked at, its bytes are not)."""
    folder = artefacts / digest
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
        found = Artefact(folder, manifest)
        verify(found)
    except (OSError, msgspec.MsgspecError, ArtefactDamaged):
        return None
    return found if manifest.digest == digest else None


def every(artefacts: Path) -> list[Artefact]:
    """All artefacts of a folder, oldest first."""
    found = [find(artefacts, entry.name) for entry in artefacts.iterdir()] if artefacts.is_dir() else []
    return sorted((one for one in found if one is not None), key=lambda one: (one.manifest.created, one.digest))


def verify(artefact: Artefact, *, checksum: bool = False) -> None:
    """Raises ArtefactDamaged where the model's size, or its sha256 if asked for, is not the manifest's."""
    try:
        size = artefact.path.stat().st_size
    except OSError as error:
        raise ArtefactDamaged(f"{artefact.path}: {error.strerror}.") from error
    if size != artefact.manifest.bytes:
        raise ArtefactDamaged(f"{artefact.path}: {size} bytes instead of {artefact.manifest.bytes}.")
    if checksum and (seen := sha256_of(artefact.path)) != artefact.manifest.sha256:
        raise ArtefactDamaged(f"{artefact.path}: sha256 {seen} instead of {artefact.manifest.sha256}.")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
