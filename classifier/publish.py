"""Trains the artefact that ships: chooses the sets that may train it, measures the recipe, writes file and manifest."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from classifier import artefact, evaluate
from classifier.errors import TooLittleData
from classifier.rows import Pairs, Row
from classifier.train import Recipe, fit

log = logging.getLogger(__name__)

FOLDS: Final = 5

LICENCES: Final[Mapping[str, str]] = {
    "mmlu_pro": "Apache-2.0 (TIGER-AI-Lab/MMLU-Pro evaluation outputs)",
    "llmrouter_14tasks": "MIT (ulab-uiuc/LLMRouter example data; prompts from public benchmarks)",
    "zeroeval_gsm8k": "Apache-2.0 (WildEval/ZeroEval); questions GSM8K, MIT",
    "zeroeval_math_l5": "Apache-2.0 (WildEval/ZeroEval); questions hendrycks/math, MIT",
}
"""Licences as read from each publisher's LICENSE file; another set's is for its owner to say."""


def trainable(sets: Mapping[str, Sequence[Row]], pairs: Pairs) -> list[str]:
    """The pooled sets that are present and may train what ships."""
    return [name for name in pairs.pooled if pairs.sets[name].may_train and name in sets]


def train(
    sets: Mapping[str, Sequence[Row]], pairs: Pairs, recipe: Recipe, output: Path, *, workers: int = 1
) -> artefact.Manifest:
    """Fits on every row that may train, and keeps the recipe's own cross-validated figures in the manifest.

    Raises TooLittleData when no set may train.
    """
    names = trainable(sets, pairs)
    chosen = {name: sets[name] for name in names}
    rows = [row for name in names for row in chosen[name]]
    if not rows:
        raise TooLittleData("no pooled set that may train has a row with both scores")
    report = evaluate.report(evaluate.with_folds(chosen, pairs, FOLDS, recipe, workers=workers), pairs)
    log.info("fitting on %d rows", len(rows))
    fitted = fit(rows, recipe, acceptable_at=pairs.acceptable_at)
    manifest = artefact.Manifest(
        version="",
        sets=tuple(_trained(name, pairs, len(chosen[name])) for name in names),
        recipe=msgspec.structs.asdict(recipe),
        metrics={metric: report["pooled"][metric] for metric in evaluate.METRICS},
        prompts=tuple(sorted({row.digest for row in rows})),
    )
    return artefact.write(output, fitted.model, manifest)


def _trained(name: str, pairs: Pairs, rows: int) -> artefact.TrainedSet:
    paired = pairs.sets[name]
    licence = LICENCES.get(name, "not recorded")
    return artefact.TrainedSet(name, paired.file, paired.small, paired.large, rows, licence)
