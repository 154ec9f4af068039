"""The report on labelled prompts: the shipped artefact, or its recipe re-fitted by folds, beside baselines."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from classifier.artefact import Artefact
from classifier.metrics import Block, Floats, intervals, measure, ordering
from classifier.refit import by_folds, score
from classifier.rows import Pairs, Row, labels
from classifier.score import Scorer
from classifier.train import Recipe

METRICS: Final = ("auroc", "apgr", "cpt50", "cpt80", "ece", "brier")


class Scored(msgspec.Struct, frozen=True):
    """One set as it is evaluated: rows that were not trained on, and what the classifier says of each."""

    rows: list[Row]
    probability: Floats
    gain: Floats
    seen_rows: int = 0


class Bootstrap(msgspec.Struct, frozen=True):
    """How many draws the intervals stand on; 0: no intervals."""

    draws: int = 0
    seed: int = 0


def with_artefact(artefact: Artefact, sets: Mapping[str, Sequence[Row]]) -> dict[str, Scored]:
    """Scores each set with the artefact; rows whose prompt it was trained on are dropped and counted."""
    scorer = Scorer(artefact.model, artefact.manifest.version)
    trained = frozenset(artefact.manifest.prompts)
    scored: dict[str, Scored] = {}
    for name, rows in sets.items():
        unseen = [row for row in rows if row.digest not in trained]
        scored[name] = _scored(unseen, score(scorer, unseen), len(rows) - len(unseen))
    return scored


def with_folds(
    sets: Mapping[str, Sequence[Row]], pairs: Pairs, folds: int, recipe: Recipe, *, workers: int = 1
) -> dict[str, Scored]:
    """Scores each set with models fitted on these rows, never on the same prompt; see `refit.by_folds`."""
    found = by_folds(sets, pairs, folds, recipe, workers=workers)
    return {name: _scored(rows, found[name]) for name, rows in sets.items()}


def report(scored: Mapping[str, Scored], pairs: Pairs, bootstrap: Bootstrap | None = None) -> dict[str, Any]:
    """The JSON object of the command: metrics of the pooled rows, of each set, and of the baselines."""
    bootstrap = bootstrap or Bootstrap()
    pool = _pool([scored[name] for name in pairs.pooled if name in scored])
    at = pairs.acceptable_at
    return {
        "pooled": _block(pool, at, bootstrap),
        "sets": {name: _block(part, at, bootstrap) for name, part in scored.items()},
        "baselines": {
            kind: {
                "pooled": _only_order(baseline(pool.rows, at)),
                "sets": {name: _only_order(baseline(part.rows, at)) for name, part in scored.items()},
            }
            for kind, baseline in BASELINES.items()
        },
    }


def at_random(rows: Sequence[Row], _acceptable_at: float) -> Block:
    """What a random order gives in expectation, exactly."""
    return Block(n=len(rows), apgr=0.5, cpt50=50.0, cpt80=80.0)


def by_word_count(rows: Sequence[Row], acceptable_at: float) -> Block:
    """The longer prompt goes to the large model."""
    return ordering(np.array([len(row.prompt.split()) for row in rows], dtype=np.float64), labels(rows, acceptable_at))


def by_subject(rows: Sequence[Row], acceptable_at: float) -> Block:
    """The mean gap of the row's own subject: it has seen the answers, so it is an upper line, not a rival."""
    known = labels(rows, acceptable_at)
    gaps: dict[tuple[str, str], list[float]] = {}
    for row, gap in zip(rows, known.gap.tolist(), strict=True):
        gaps.setdefault(row.subject, []).append(gap)
    means = {subject: sum(values) / len(values) for subject, values in gaps.items()}
    return ordering(np.array([means[row.subject] for row in rows], dtype=np.float64), known)


BASELINES: Final[Mapping[str, Callable[[Sequence[Row], float], Block]]] = {
    "random": at_random,
    "word_count": by_word_count,
    "subject_oracle": by_subject,
}


def _scored(rows: Sequence[Row], scores: Floats, seen_rows: int = 0) -> Scored:
    return Scored(rows=list(rows), probability=scores[:, 0], gain=scores[:, 1], seen_rows=seen_rows)


def _pool(parts: Iterable[Scored]) -> Scored:
    parts = list(parts)
    empty = np.zeros(0)
    return Scored(
        rows=[row for part in parts for row in part.rows],
        probability=np.concatenate([empty, *(part.probability for part in parts)]),
        gain=np.concatenate([empty, *(part.gain for part in parts)]),
        seen_rows=sum(part.seen_rows for part in parts),
    )


def _block(part: Scored, acceptable_at: float, bootstrap: Bootstrap) -> dict[str, Any]:
    known = labels(part.rows, acceptable_at)
    block = msgspec.structs.asdict(measure(part.probability, part.gain, known))
    block["seen_rows"] = part.seen_rows
    if bootstrap.draws:
        random = np.random.default_rng(bootstrap.seed)
        block["intervals"] = intervals(part.probability, part.gain, known, draws=bootstrap.draws, random=random)
    return block


def _only_order(block: Block) -> dict[str, Any]:
    return {"n": block.n, "apgr": block.apgr, "cpt50": block.cpt50, "cpt80": block.cpt80}
