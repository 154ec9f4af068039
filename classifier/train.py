"""Fits the classifier on labelled prompts with scikit-learn and turns what it learned into plain arrays."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from classifier import trees
from classifier.errors import TooLittleData
from classifier.features import Text, read
from classifier.model import Floats, Forest, Line, Model, Vocabulary
from classifier.prompt import from_text
from classifier.rows import Row, fold_of, labels

FEWEST: Final = 200
"""Rows below which nothing is held out for calibration: the trees are too shallow to be over-sure."""

LEAST_SLOPE: Final = 0.05
"""Held-out rows may say that the predicted gain is worth nothing; it still orders, but moves costs little."""


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
    calibration_folds: int = 3
    half: bool = True  # keep the projection in 16 bits


class Fitted(msgspec.Struct, frozen=True):
    """The arrays, and the scikit-learn estimators they were taken from (None where the rows allow no fit)."""

    model: Model
    vectorizer: TfidfVectorizer | None
    projection: TruncatedSVD | None
    classifier: HistGradientBoostingClassifier | None
    regressor: HistGradientBoostingRegressor | None


class _Trees(msgspec.Struct, frozen=True):
    forest: Forest
    classifier: HistGradientBoostingClassifier | None
    regressor: HistGradientBoostingRegressor | None


def fit(rows: Sequence[Row], recipe: Recipe, *, acceptable_at: float = 0.5) -> Fitted:
    """Learns from every row. Raises TooLittleData when there is none. The same rows and recipe give the same model."""
    if not rows:
        raise TooLittleData("no labelled row that may train")
    texts = [read(from_text(row.prompt).text) for row in rows]
    vectorizer, projection, vocabulary = _vocabulary(texts, recipe)
    features = np.array([np.concatenate((vocabulary.project(text.words), text.hand)) for text in texts])
    known = labels(rows, acceptable_at)
    acceptable, gap = known.acceptable, known.gap
    grown = _grow(features, acceptable, gap, recipe)
    held_out = _held_out(features, acceptable, gap, rows, recipe)
    small, gain = (Line(), Line()) if held_out is None else _calibrate(held_out, acceptable, gap)
    return Fitted(
        model=Model(vocabulary=vocabulary, forest=grown.forest, small=small, gain=gain),
        vectorizer=vectorizer,
        projection=projection,
        classifier=grown.classifier,
        regressor=grown.regressor,
    )


def words_of(text: Text) -> list[bytes]:
    """What scikit-learn's vectorizer counts (a named function, so that estimators can be copied)."""
    return text.words


def _vocabulary(
    texts: Sequence[Text], recipe: Recipe
) -> tuple[TfidfVectorizer | None, TruncatedSVD | None, Vocabulary]:
    prompts_with = Counter(word for text in texts for word in set(text.words))
    fewest = min(recipe.fewest_prompts, max(1, len(texts) // 20))
    terms = sorted(word for word, count in prompts_with.items() if count >= fewest)
    if not terms:
        return None, None, Vocabulary({}, np.zeros(0), np.zeros((0, 0), dtype=np.float32))
    vectorizer: Any = TfidfVectorizer(analyzer=words_of, vocabulary=terms, lowercase=False, sublinear_tf=True)
    weighted = vectorizer.fit_transform(texts)
    wanted = min(recipe.dimensions, len(terms), len(texts))
    projection: Any = TruncatedSVD(wanted, n_iter=4, random_state=recipe.seed).fit(weighted)
    directions = np.ascontiguousarray(projection.components_.T, dtype=np.float32)
    if recipe.half:
        directions = directions.astype(np.float16).astype(np.float32)
    index = {term: row for row, term in enumerate(terms)}
    return vectorizer, projection, Vocabulary(index, np.asarray(vectorizer.idf_, dtype=np.float64), directions)


def _options(recipe: Recipe) -> dict[str, Any]:
    return {
        "max_iter": recipe.iterations,
        "learning_rate": recipe.learning_rate,
        "max_leaf_nodes": recipe.leaves,
        "min_samples_leaf": recipe.fewest_rows,
        "l2_regularization": recipe.shrinkage,
        "max_features": recipe.candidates,
        "early_stopping": False,
        "random_state": recipe.seed,
    }


def _grow(features: Floats, acceptable: Floats, gap: Floats, recipe: Recipe) -> _Trees:
    """One ensemble for the log odds of the small model, one for the gain."""
    regressor: Any = HistGradientBoostingRegressor(**_options(recipe)).fit(features, gap)
    ones = float(acceptable.sum())
    if ones in (0.0, float(len(acceptable))):
        constant = float(np.log((ones + 1) / (len(acceptable) - ones + 1)))
        parts = [trees.Ensemble(base=constant), trees.taken_from(regressor)]
        return _Trees(trees.forest(parts), None, regressor)
    classifier: Any = HistGradientBoostingClassifier(**_options(recipe)).fit(features, acceptable)
    parts = [trees.taken_from(classifier), trees.taken_from(regressor)]
    return _Trees(trees.forest(parts), classifier, regressor)


def _held_out(
    features: Floats, acceptable: Floats, gap: Floats, rows: Sequence[Row], recipe: Recipe
) -> NDArray[np.float64] | None:
    """Raw outputs for each row from trees that did not see its prompt, shape (rows, 2). None with too few rows.

    The folds use other digits of the digest than `--cv` does, so that they are independent of it.
    """
    if len(rows) < FEWEST:
        return None
    fold = np.array([fold_of(row.digest[8:], recipe.calibration_folds) for row in rows])
    raw = np.zeros((len(rows), 2))
    for held in range(recipe.calibration_folds):
        away, there = np.flatnonzero(fold != held), np.flatnonzero(fold == held)
        if len(away) and len(there):
            forest = _grow(features[away], acceptable[away], gap[away], recipe).forest
            raw[there] = [forest.evaluate(features[row]) for row in there]
    return raw


def _calibrate(raw: Floats, acceptable: Floats, gap: Floats) -> tuple[Line, Line]:
    """Platt's line for the log odds (Platt 1999); least squares for the gain."""
    small = Line()
    if 0 < acceptable.sum() < len(acceptable):
        platt: Any = LogisticRegression(C=1e6).fit(raw[:, :1], acceptable)
        small = Line(slope=max(LEAST_SLOPE, float(platt.coef_[0, 0])), offset=float(platt.intercept_[0]))
    centred = raw[:, 1] - raw[:, 1].mean()
    spread = float(centred @ centred)
    slope = max(LEAST_SLOPE, float(centred @ gap) / spread) if spread > 0 else 1.0
    return small, Line(slope=slope, offset=float(gap.mean() - slope * raw[:, 1].mean()))
