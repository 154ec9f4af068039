"""The trained classifier as one file: plain arrays and a manifest, checked when read."""

import hashlib
import zipfile
import zlib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier import features
from classifier.errors import ArtefactUnreadable
from classifier.model import Forest, Line, Model, Vocabulary

KIND: Final = "turnout-difficulty"
FORMAT: Final = 1
PACKAGED: Final = "difficulty.npz"

_BROKEN: Final = (
    ValueError, KeyError, EOFError, OSError, NotImplementedError, zipfile.BadZipFile, zlib.error, msgspec.MsgspecError,
)  # fmt: skip
"""What reading a file that is not ours, or not whole, raises on the way."""

_Arrays = Mapping[str, NDArray[Any]]


class TrainedSet(msgspec.Struct, frozen=True):
    """One file the classifier was trained on."""

    name: str
    file: str
    small: str
    large: str
    rows: int
    licence: str


class Manifest(msgspec.Struct, frozen=True):
    """What an artefact is and where it comes from. `prompts`: SHA-256 of each normalised training prompt."""

    version: str  # names this very model: its first hex digits are those of `arrays`
    arrays: str = ""  # SHA-256 over the arrays
    kind: str = KIND
    format: int = FORMAT
    features: int = features.VERSION
    hand: tuple[str, ...] = ()
    sets: tuple[TrainedSet, ...] = ()
    recipe: Mapping[str, float | int | bool | str] = {}
    metrics: Mapping[str, float | None] = {}  # out of fold, pooled
    small: Line = Line()
    gain: Line = Line()
    prompts: tuple[str, ...] = ()


class Artefact(msgspec.Struct, frozen=True):
    manifest: Manifest
    model: Model


def write(path: Path, model: Model, manifest: Manifest) -> Manifest:
    """Writes the file whole or not at all; gives back the manifest as written."""
    arrays = _to_arrays(model)
    sha = _sha(arrays)
    full = msgspec.structs.replace(
        manifest,
        version=f"{FORMAT}.{sha[:12]}",
        arrays=sha,
        hand=features.HAND,
        small=model.small,
        gain=model.gain,
    )
    buffer = BytesIO()
    arrays["manifest"] = np.frombuffer(msgspec.json.encode(full), dtype=np.uint8)
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(buffer.getvalue())
    partial.replace(path)
    return full


def load(path: Path | None = None) -> Artefact:
    """The artefact at `path`, else the one that ships. Raises ArtefactUnreadable with the reason."""
    source: Path | Traversable = path or resources.files("classifier") / "data" / PACKAGED
    try:
        data = source.read_bytes()
    except OSError as error:
        raise ArtefactUnreadable(f"{source}: {error.strerror or error}") from error
    try:
        return _decode(data)
    except ArtefactUnreadable as error:
        raise ArtefactUnreadable(f"{source}: {error}") from error
    except _BROKEN as error:
        raise ArtefactUnreadable(f"{source}: cut short or not a classifier artefact ({error})") from error


class _Head(msgspec.Struct, frozen=True):
    """The part of a manifest that is read first: any format has it."""

    kind: str
    format: int
    features: int


def _decode(data: bytes) -> Artefact:
    with np.load(BytesIO(data), allow_pickle=False) as held:
        arrays: dict[str, NDArray[Any]] = {name: held[name] for name in held.files}
    if "manifest" not in arrays:
        raise ArtefactUnreadable("not a classifier artefact: it has no manifest")
    raw = arrays.pop("manifest").tobytes()
    head = msgspec.json.decode(raw, type=_Head)
    if head.kind != KIND:
        raise ArtefactUnreadable(f"an artefact of another kind: {head.kind!r}")
    if head.format > FORMAT or head.features > features.VERSION:
        raise ArtefactUnreadable(f"made by a newer Turnout (format {head.format}, features {head.features})")
    if head.format < FORMAT or head.features < features.VERSION:
        raise ArtefactUnreadable("made by an older Turnout whose features differ: train it anew")
    manifest = msgspec.json.decode(raw, type=Manifest)
    if _sha(arrays) != manifest.arrays:
        raise ArtefactUnreadable("its arrays do not match its manifest's checksum")
    return Artefact(manifest, _to_model(arrays, manifest))


def _sha(arrays: _Arrays) -> str:
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def _to_arrays(model: Model) -> dict[str, NDArray[Any]]:
    vocabulary, forest = model.vocabulary, model.forest
    half = vocabulary.directions.astype(np.float16)
    exact = bool(np.array_equal(half.astype(np.float32), vocabulary.directions))
    return {
        "words": np.frombuffer(b"\n".join(vocabulary.index), dtype=np.uint8),
        "idf": vocabulary.idf,
        "directions": half if exact else vocabulary.directions,
        "feature": forest.feature,
        "threshold": forest.threshold,
        "keeps": forest.keeps,
        "values": forest.values,
        "base": forest.base,
    }


def _to_model(arrays: _Arrays, manifest: Manifest) -> Model:
    words = arrays["words"].tobytes()
    index = {word: row for row, word in enumerate(words.split(b"\n"))} if words else {}
    return Model(
        vocabulary=Vocabulary(index, arrays["idf"], arrays["directions"].astype(np.float32)),
        forest=Forest(**{name: arrays[name] for name in ("feature", "threshold", "keeps", "values", "base")}),
        small=manifest.small,
        gain=manifest.gain,
    )
