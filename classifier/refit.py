"""Scores labelled rows by models that were fitted without their prompts: the recipe, re-fitted by folds."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import msgspec
import numpy as np

from classifier.metrics import Floats
from classifier.prompt import from_text
from classifier.rows import Pairs, Row, fold_of
from classifier.score import Scorer
from classifier.train import Recipe, fit

log = logging.getLogger(__name__)

Sets = Mapping[str, Sequence[Row]]


class Job(msgspec.Struct, frozen=True):
    """Fit on `learn`, score `score`; `places` says where each score belongs (set, row number)."""

    learn: list[Row]
    score: list[Row]
    places: list[tuple[str, int]]


def by_folds(sets: Sets, pairs: Pairs, folds: int, recipe: Recipe, *, workers: int = 1) -> dict[str, Floats]:
    """P(small acceptable) and gain of every row, shape (rows, 2) for each set.

    Each fold of the pooled rows is scored by a model fitted on the other folds. Sets that are not pooled are scored
    by a model fitted on the pooled rows but those with a prompt of that set. `workers`: processes that fit at the
    same time; the result does not depend on it.
    """
    scores = {name: np.zeros((len(rows), 2)) for name, rows in sets.items()}
    jobs = [*_fold_jobs(sets, pairs, folds), *_transfer_jobs(sets, pairs)]
    work = partial(_run, recipe=recipe, acceptable_at=pairs.acceptable_at)
    for number, found in enumerate(_map(work, jobs, workers)):
        log.info("fitted %d of %d", number + 1, len(jobs))
        for (name, row), pair in zip(jobs[number].places, found, strict=True):
            scores[name][row] = pair
    return scores


def score(scorer: Scorer, rows: Sequence[Row]) -> Floats:
    """P(small acceptable) and gain of each prompt taken as one user turn, shape (rows, 2)."""
    seen = [scorer.difficulty(from_text(row.prompt)) for row in rows]
    return np.array([(one.small, one.gain) for one in seen], dtype=np.float64).reshape(-1, 2)


def _fold_jobs(sets: Sets, pairs: Pairs, folds: int) -> Iterator[Job]:
    pooled = [(name, number, row) for name in pairs.pooled for number, row in enumerate(sets.get(name, ()))]
    fold = [fold_of(row.digest, folds) for _, _, row in pooled]
    for held in sorted(set(fold)):
        there = [one for one, at in zip(pooled, fold, strict=True) if at == held]
        yield Job(
            learn=[row for (_, _, row), at in zip(pooled, fold, strict=True) if at != held],
            score=[row for _, _, row in there],
            places=[(name, number) for name, number, _ in there],
        )


def _transfer_jobs(sets: Sets, pairs: Pairs) -> Iterator[Job]:
    """Sets that share the same prompts with the pool share a model."""
    pooled = [row for name in pairs.pooled for row in sets.get(name, ())]
    known = {row.digest for row in pooled}
    alike: dict[frozenset[str], list[str]] = {}
    for name in (name for name in sets if not pairs.sets[name].pooled):
        alike.setdefault(frozenset(known & {row.digest for row in sets[name]}), []).append(name)
    for shared, names in alike.items():
        yield Job(
            learn=[row for row in pooled if row.digest not in shared],
            score=[row for name in names for row in sets[name]],
            places=[(name, number) for name in names for number in range(len(sets[name]))],
        )


def _run(job: Job, recipe: Recipe, acceptable_at: float) -> Floats:
    if not job.learn:  # nothing to learn from: no row is more likely than another
        return np.tile([0.5, 0.0], (len(job.score), 1))
    model = fit(job.learn, recipe, acceptable_at=acceptable_at).model
    return score(Scorer(model, "refit"), job.score)


def _map(work: Callable[[Job], Floats], jobs: Sequence[Job], workers: int) -> Iterator[Floats]:
    if workers == 1 or len(jobs) < 2:  # noqa: PLR2004 - one job needs no second process
        yield from map(work, jobs)
        return
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, jobs)
