"""Labelled prompts as files: which pairs of models are compared in which file, and the rows that have both scores."""

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy as np

from classifier.errors import DataUnreadable
from classifier.metrics import Labels


class PairedSet(msgspec.Struct, frozen=True):
    """One file of labelled prompts and the two models that are compared in it."""

    file: str
    small: str
    large: str
    pooled: bool = False
    may_train: bool = False


class Pairs(msgspec.Struct, frozen=True):
    """`pairs.json`: the sets, the keys of their rows, and the order in which the pooled ones are joined."""

    sets: dict[str, PairedSet]
    pooled_order: list[str] = []
    prompt_key: str = "prompt"
    metric_key: str = "scores"
    benchmark_key: str = "benchmark"
    subset_key: str = "subset"
    acceptable_at: float = 0.5

    @property
    def pooled(self) -> list[str]:
        """Names of the pooled sets, in their order; one the order forgets comes last."""
        names = [*self.pooled_order, *self.sets]
        return [name for name in dict.fromkeys(names) if name in self.sets and self.sets[name].pooled]


class Row(msgspec.Struct, frozen=True):
    """One prompt with the scores of both models. `digest`: SHA-256 (hex) of the normalised prompt."""

    prompt: str
    small: float
    large: float
    digest: str
    subject: tuple[str, str] = ("", "")  # benchmark, subset: for the oracle baseline only, never for the classifier
    others: Mapping[str, float] = {}  # scores of further models on it: they may teach in training, never an input


def digest(prompt: str) -> str:
    """SHA-256 of the prompt in lower case, each run of white space one space, stripped."""
    return hashlib.sha256(" ".join(prompt.lower().split()).encode("utf-8", "surrogatepass")).hexdigest()


def fold_of(digest_hex: str, folds: int) -> int:
    """The same prompt is always in the same fold, whatever file it stands in."""
    return int(digest_hex[:8], 16) % folds


def labels(rows: Sequence[Row], acceptable_at: float) -> Labels:
    small = np.array([row.small for row in rows], dtype=np.float64)
    large = np.array([row.large for row in rows], dtype=np.float64)
    return Labels(small, large, acceptable_at)


def read_pairs(path: Path) -> Pairs:
    """Raises DataUnreadable naming the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Pairs)
    except (OSError, msgspec.DecodeError) as error:
        raise DataUnreadable(f"{path}: {error}") from error


def find_pairs(folder: Path, given: Path | None) -> Pairs:
    """The file given, else the folder's own `pairs.json`, else the packaged one."""
    if given is not None:
        return read_pairs(given)
    own = folder / "pairs.json"
    if own.exists():
        return read_pairs(own)
    packaged = resources.files("classifier") / "data" / "pairs.json"
    return msgspec.json.decode(packaged.read_bytes(), type=Pairs)


def read_sets(folder: Path, pairs: Pairs) -> dict[str, list[Row]]:
    """The sets that have at least one row with both scores, rows in file order."""
    found = {name: list(_rows(folder, paired, pairs)) for name, paired in pairs.sets.items()}
    return {name: rows for name, rows in found.items() if rows}


def _open(folder: Path, name: str) -> IO[bytes] | None:
    path = folder / name
    if path.exists() and name.endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    plain = folder / name.removesuffix(".gz")
    return plain.open("rb") if plain.exists() else None


def _rows(folder: Path, paired: PairedSet, pairs: Pairs) -> Iterator[Row]:
    source = _open(folder, paired.file)
    if source is None:
        return
    number = 0
    try:
        with source:
            for number, line in enumerate(source, start=1):  # noqa: B007 - the error below names the line
                row = _row(line, paired, pairs) if line.strip() else None
                if row is not None:
                    yield row
    except (OSError, EOFError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataUnreadable(f"{folder / paired.file}, line {number}: {error!r}") from error


def _row(line: bytes, paired: PairedSet, pairs: Pairs) -> Row | None:
    raw: dict[str, Any] = json.loads(line)  # the standard library also takes lone surrogates
    given: dict[str, Any] = raw.get(pairs.metric_key) or {}
    scores = {model: float(score) for model, score in given.items() if _is_score(score)}
    if paired.small not in scores or paired.large not in scores:
        return None
    prompt: str = raw[pairs.prompt_key]
    subject = (str(raw.get(pairs.benchmark_key) or ""), str(raw.get(pairs.subset_key) or ""))
    others = {model: score for model, score in scores.items() if model not in (paired.small, paired.large)}
    return Row(prompt, scores[paired.small], scores[paired.large], digest(prompt), subject, others)


def _is_score(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value)
