"""The scikit-learn estimators that training uses, in one place: the library carries no types."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import threadpoolctl  # type: ignore[import-untyped]
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from classifier.features import Text


def words_of(text: Text) -> list[bytes]:
    return text.words


def vectorizer(terms: Sequence[bytes]) -> Any:
    """TF-IDF of these words: (1 + log count) x idf, each row scaled to length 1."""
    make: Any = TfidfVectorizer
    return make(analyzer=words_of, vocabulary=terms, lowercase=False, sublinear_tf=True)


def projection(dimensions: int, seed: int) -> Any:
    """Truncated SVD by random projection; a few power iterations bring it near the exact one."""
    make: Any = TruncatedSVD
    return make(dimensions, n_iter=4, random_state=seed)


def boosting(**options: Any) -> Any:
    """Histogram gradient boosting with squared error."""
    make: Any = HistGradientBoostingRegressor
    return make(early_stopping=False, **options)


def averaging(seed: int) -> Any:
    """Extremely randomised trees whose leaves hold enough rows to be means rather than memories."""
    make: Any = ExtraTreesRegressor
    return make(60, min_samples_leaf=15, max_features=1.0, random_state=seed)


def platt() -> Any:
    """Logistic regression that is practically not regularised."""
    make: Any = LogisticRegression
    return make(C=1e6)


def one_thread() -> AbstractContextManager[Any]:
    """Sums in one order, so that results do not depend on the number of cores; folds run in processes instead."""
    limits: Callable[..., AbstractContextManager[Any]] = threadpoolctl.threadpool_limits
    return limits(limits=1)
