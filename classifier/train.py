"""Fits the classifier on labelled prompts with scikit-learn and turns what it learned into plain arrays."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from classifier import estimators, trees
from classifier.errors import TooLittleData
from classifier.features import Text, read
from classifier.model import Floats, Forest, Line, Model, Vocabulary, log_odds
from classifier.prompt import from_text
from classifier.rows import Row, fold_of, labels

FEWEST: Final = 200
"""Rows below which nothing is held out: no calibration, and other models teach nothing."""

LEAST_SLOPE: Final = 0.05
"""Held-out rows may say that a raw output is worth nothing; it still orders, but moves costs little."""


class Recipe(msgspec.Struct, frozen=True):
    """Everything that decides what is learned, besides the rows."""

    seed: int = 0
    dimensions: int = 64
    fewest_prompts: int = 3  # a word must occur in as many
    iterations: int = 200
    learning_rate: float = 0.05
    leaves: int = 15
    fewest_rows: int = 40  # in a leaf
    shrinkage: float = 1.0  # L2 on a leaf's value
    candidates: float = 0.3  # share of the features a split may choose from
    teaching: float = 0.5  # weight of what other models' answers say of a row, against its own label
    calibration_folds: int = 3
    half: bool = True  # keep the projection in 16 bits


class Fitted(msgspec.Struct, frozen=True):
    """The arrays, and the scikit-learn estimators they were taken from.

    `vectorizer` and `projection` are None where no prompt has a word; `boostings`: small model, gain;
    `platt` is None where nothing could be held out.
    """

    model: Model
    vectorizer: Any
    projection: Any
    boostings: tuple[Any, Any]
    platt: Any


class _Words(msgspec.Struct, frozen=True):
    vocabulary: Vocabulary
    vectorizer: Any = None
    projection: Any = None


class _Grown(msgspec.Struct, frozen=True):
    forest: Forest
    boostings: tuple[Any, Any]


class _Lines(msgspec.Struct, frozen=True):
    small: Line = Line()
    gain: Line = Line()
    platt: Any = None


def fit(rows: Sequence[Row], recipe: Recipe, *, acceptable_at: float = 0.5) -> Fitted:
    """Learns from every row. Raises TooLittleData when there is none. The same rows and recipe give the same model."""
    if not rows:
        raise TooLittleData("no labelled row that may train")
    with estimators.one_thread():
        texts = [read(from_text(row.prompt).text) for row in rows]
        words = _words(texts, recipe)
        features = np.array([np.concatenate((words.vocabulary.project(text.words), text.hand)) for text in texts])
        known = labels(rows, acceptable_at)
        truth = np.stack((known.acceptable, known.gap), axis=1)
        targets = softened(truth, rows, recipe)
        grown = _grow(features, targets, recipe)
        lines = _calibrate(_held_out(features, targets, rows, recipe), truth)
    return Fitted(
        model=Model(words.vocabulary, grown.forest, lines.small, lines.gain),
        vectorizer=words.vectorizer,
        projection=words.projection,
        boostings=grown.boostings,
        platt=lines.platt,
    )


def _words(texts: Sequence[Text], recipe: Recipe) -> _Words:
    prompts_with = Counter(word for text in texts for word in set(text.words))
    fewest = min(recipe.fewest_prompts, max(1, len(texts) // 20))
    terms = sorted(word for word, count in prompts_with.items() if count >= fewest)
    if not terms:
        return _Words(Vocabulary({}, np.zeros(0), np.zeros((0, 0), dtype=np.float32)))
    vectorizer = estimators.vectorizer(terms)
    weighted = vectorizer.fit_transform(texts)
    projection = estimators.projection(min(recipe.dimensions, len(terms), len(texts)), recipe.seed)
    with np.errstate(invalid="ignore"):  # prompts that are all alike have no variance to explain
        projection.fit(weighted)
    directions = np.ascontiguousarray(projection.components_.T, dtype=np.float32)
    if recipe.half:
        directions = directions.astype(np.float16).astype(np.float32)
    index = {term: row for row, term in enumerate(terms)}
    vocabulary = Vocabulary(index, np.asarray(vectorizer.idf_, dtype=np.float64), directions)
    return _Words(vocabulary, vectorizer, projection)


def softened(truth: Floats, rows: Sequence[Row], recipe: Recipe) -> Floats:
    """Labels with less noise: each is mixed with what the other models' answers to the same prompt predict for it.

    Whether one model gets one question right is partly luck; what five others did with it says how hard it is.
    That is known in training alone, so a teacher reads it and the classifier learns from the teacher (generalised
    distillation: Lopez-Paz et al., ICLR 2016). Each row's teacher was fitted without its prompt. `truth`: (rows, 2).
    """
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[tuple(sorted(row.others))].append(number)
    soft = truth.copy()
    for models, members in groups.items():
        if models and len(members) >= FEWEST and recipe.teaching:
            at = np.array(members)
            seen = np.array([[rows[number].others[model] for model in models] for number in members])
            fold = np.array([fold_of(rows[number].digest[16:], 5) for number in members])
            taught = _taught(seen, truth[at], fold, recipe.seed)
            soft[at] = (1 - recipe.teaching) * truth[at] + recipe.teaching * taught
    return soft


def _taught(seen: Floats, truth: Floats, fold: Floats, seed: int) -> Floats:
    taught = truth.copy()
    for held in np.unique(fold):
        there = fold == held
        if not there.all():
            taught[there] = estimators.averaging(seed).fit(seen[~there], truth[~there]).predict(seen[there])
    return taught


def _grow(features: Floats, targets: Floats, recipe: Recipe) -> _Grown:
    """One ensemble for the small model, one for the gain."""
    small, gain = (
        estimators.boosting(
            max_iter=recipe.iterations,
            learning_rate=recipe.learning_rate,
            max_leaf_nodes=recipe.leaves,
            min_samples_leaf=recipe.fewest_rows,
            l2_regularization=recipe.shrinkage,
            max_features=recipe.candidates,
            random_state=recipe.seed,
        ).fit(features, targets[:, output])
        for output in range(2)
    )
    return _Grown(trees.forest([trees.taken_from(small), trees.taken_from(gain)]), (small, gain))


def _held_out(features: Floats, targets: Floats, rows: Sequence[Row], recipe: Recipe) -> Floats | None:
    """Raw outputs for each row from trees that did not see its prompt, shape (rows, 2). None with too few rows.

    The folds use other digits of the digest than `--cv` does, so that they are independent of it.
    """
    fold = np.array([fold_of(row.digest[8:], recipe.calibration_folds) for row in rows])
    if len(rows) < FEWEST or len(np.unique(fold)) == 1:
        return None
    raw = np.zeros((len(rows), 2))
    for held in np.unique(fold):
        there = np.flatnonzero(fold == held)
        forest = _grow(features[fold != held], targets[fold != held], recipe).forest
        raw[there] = [forest.evaluate(features[row]) for row in there]
    return raw


def _calibrate(raw: Floats | None, truth: Floats) -> _Lines:
    """Platt's line for the small model's log odds (Platt 1999); least squares for the gain. `truth`: true labels."""
    if raw is None:
        return _Lines()
    acceptable, gap = truth[:, 0], truth[:, 1]
    small, platt = Line(), None
    if 0 < acceptable.sum() < len(acceptable):
        odds = np.array([[log_odds(float(value))] for value in raw[:, 0]])
        platt = estimators.platt().fit(odds, acceptable)
        small = Line(slope=max(LEAST_SLOPE, float(platt.coef_[0, 0])), offset=float(platt.intercept_[0]))
    centred = raw[:, 1] - raw[:, 1].mean()
    spread = float(centred @ centred)
    slope = max(LEAST_SLOPE, float(centred @ gap) / spread) if spread > 0 else 1.0
    return _Lines(small, Line(slope=slope, offset=float(gap.mean() - slope * raw[:, 1].mean())), platt)
