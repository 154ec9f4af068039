"""Takes the trees out of scikit-learn's histogram boosting and lays them out as `model.Forest`."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from classifier.model import LEAVES, Forest


class Split(msgspec.Struct, frozen=True):
    """An inner node: rows whose feature is above the threshold lose the leaves `first` to `last` - 1."""

    feature: int
    threshold: float
    first: int
    last: int


class Tree(msgspec.Struct, frozen=True):
    splits: tuple[Split, ...] = ()
    values: tuple[float, ...] = (0.0,)  # of the leaves, from left to right


class Ensemble(msgspec.Struct, frozen=True):
    """The sum of a constant and of trees."""

    base: float
    trees: tuple[Tree, ...] = ()


def taken_from(boosting: Any) -> Ensemble:
    """From a fitted HistGradientBoosting classifier of two classes (log odds) or regressor.

    Reads attributes that scikit-learn keeps to itself; a test compares the result with its own predictions.
    """
    base = float(np.ravel(boosting._baseline_prediction)[0])  # noqa: SLF001 - there is no public way
    stages = boosting._predictors  # noqa: SLF001
    return Ensemble(base, tuple(_tree(stage[0].nodes) for stage in stages))


def _tree(nodes: Any) -> Tree:
    splits: list[Split] = []
    values: list[float] = []
    _walk(nodes, 0, splits, values)
    return Tree(tuple(splits), tuple(values))


def _walk(nodes: Any, at: int, splits: list[Split], values: list[float]) -> None:
    node = nodes[at]
    if node["is_leaf"]:
        values.append(float(node["value"]))
        return
    first = len(values)
    _walk(nodes, int(node["left"]), splits, values)
    splits.append(Split(int(node["feature_idx"]), float(node["num_threshold"]), first, len(values)))
    _walk(nodes, int(node["right"]), splits, values)


def forest(ensembles: Sequence[Ensemble]) -> Forest:
    """Side by side, each padded to the same number of trees. Raises ValueError for a tree of more than 16 leaves."""
    longest = max(len(ensemble.trees) for ensemble in ensembles)
    feature = np.zeros((LEAVES - 1, longest * len(ensembles)), dtype=np.int16)
    threshold = np.full(feature.shape, np.inf)
    keeps = np.full(feature.shape, 0xFFFF, dtype=np.uint16)
    values = np.zeros((feature.shape[1], LEAVES))
    for column, tree in _columns(ensembles, longest):
        if len(tree.values) > LEAVES:
            raise ValueError(f"a tree of {len(tree.values)} leaves; at most {LEAVES} fit")
        values[column, : len(tree.values)] = tree.values
        for row, split in enumerate(tree.splits):
            feature[row, column] = split.feature
            threshold[row, column] = split.threshold
            keeps[row, column] = 0xFFFF & ~((1 << split.last) - (1 << split.first))
    return Forest(feature, threshold, keeps, values, np.array([ensemble.base for ensemble in ensembles]))


def _columns(ensembles: Sequence[Ensemble], longest: int) -> Iterator[tuple[int, Tree]]:
    for number, ensemble in enumerate(ensembles):
        for position, tree in enumerate(ensemble.trees):
            yield number * longest + position, tree
