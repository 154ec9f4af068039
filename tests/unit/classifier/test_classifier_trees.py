"""Trees as arrays give what scikit-learn's own trees give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from classifier.model import sigmoid
from classifier.trees import Ensemble, Split, Tree, forest, taken_from

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(400, 6))
Y = (X[:, 0] * X[:, 1] + 0.3 * RANDOM.normal(size=400) > 0).astype(float)
OPTIONS = {"max_iter": 30, "max_leaf_nodes": 16, "min_samples_leaf": 5, "early_stopping": False, "random_state": 0}


def test_boosting_by_arrays_is_boosting():
    classifier = HistGradientBoostingClassifier(**OPTIONS).fit(X, Y)
    regressor = HistGradientBoostingRegressor(**OPTIONS).fit(X, X[:, 2] ** 2)
    grown = forest([taken_from(classifier), taken_from(regressor)])
    fresh = np.random.default_rng(4).normal(size=(200, 6))
    raw = np.array([grown.evaluate(row) for row in fresh])
    assert np.allclose([sigmoid(value) for value in raw[:, 0]], classifier.predict_proba(fresh)[:, 1], atol=1e-12)
    assert np.allclose(raw[:, 1], regressor.predict(fresh), atol=1e-12)


def stump(feature, threshold, low, high):
    return Tree((Split(feature, threshold, 0, 1),), (low, high))


def test_a_value_at_the_threshold_goes_left():
    grown = forest([Ensemble(1.0, (stump(0, 0.5, 10.0, 20.0),))])
    assert grown.evaluate(np.array([0.5])).tolist() == [11.0]
    assert grown.evaluate(np.array([0.5001])).tolist() == [21.0]


def test_ensembles_of_different_length_stand_side_by_side():
    grown = forest([Ensemble(1.0), Ensemble(2.0, (stump(1, 0, 0.5, -0.5), stump(0, 0, 4.0, 8.0)))])
    assert grown.evaluate(np.array([1.0, -1.0])).tolist() == [1.0, 10.5]


def test_a_tree_of_one_leaf():
    assert forest([Ensemble(0.0, (Tree((), (3.0,)),))]).evaluate(np.zeros(1)).tolist() == [3.0]


def test_too_many_leaves_are_refused():
    with pytest.raises(ValueError, match="17 leaves"):
        forest([Ensemble(0.0, (Tree((), (0.0,) * 17),))])


def grow(draw, leaves):
    """A random tree as nested tuples (feature, threshold, left, right) or a leaf's number."""
    if leaves == 1:
        return draw(st.integers(-50, 50))
    left = draw(st.integers(1, leaves - 1))
    feature, threshold = draw(st.integers(0, 3)), draw(st.integers(-2, 2))
    return (feature, float(threshold), grow(draw, left), grow(draw, leaves - left))


def flatten(tree, splits, values):
    if isinstance(tree, int):
        values.append(float(tree))
        return
    feature, threshold, left, right = tree
    first = len(values)
    flatten(left, splits, values)
    splits.append(Split(feature, threshold, first, len(values)))
    flatten(right, splits, values)


def follow(tree, x):
    while not isinstance(tree, int):
        feature, threshold, left, right = tree
        tree = left if x[feature] <= threshold else right
    return float(tree)


@given(st.data())
def test_any_tree_is_followed_to_its_leaf(data):
    tree = grow(data.draw, data.draw(st.integers(1, 16)))
    splits, values = [], []
    flatten(tree, splits, values)
    x = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=4, max_size=4)), dtype=float)
    assert forest([Ensemble(0.0, (Tree(tuple(splits), tuple(values)),))]).evaluate(x).tolist() == [follow(tree, x)]
