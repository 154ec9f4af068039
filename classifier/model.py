"""The classifier as data: plain arrays, and the arithmetic that training and scoring share."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from math import exp, log
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.features import Text

Floats = NDArray[np.float64]

LEAVES: Final = 16
"""Most leaves of a tree: a set of leaves is one 16-bit word."""

SMALL, GAIN = 0, 1
"""Outputs of the forest: the chance that the small model is acceptable, and how much the large one adds."""

SUREST: Final = 0.01
"""Raw chances are kept this far from 0 and 1: squared error lets a sum of trees pass them."""


class Vocabulary(msgspec.Struct, frozen=True):
    """TF-IDF of words, projected to a few dimensions (latent semantic analysis).

    `index`: word -> row. `idf`: (words,). `directions`: (words, dimensions).
    """

    index: dict[bytes, int]
    idf: Floats
    directions: NDArray[np.float32]

    def project(self, words: Sequence[bytes]) -> Floats:
        """Shape (dimensions,). Term weight (1 + log count) x idf, scaled to length 1; unknown words are left out."""
        index = self.index
        known = {row: count for word, count in Counter(words).items() if (row := index.get(word)) is not None}
        if not known:
            return np.zeros(int(self.directions.shape[1]), dtype=np.float64)
        rows = np.fromiter(known, dtype=np.intp, count=len(known))
        weights = np.log(np.fromiter(known.values(), dtype=np.float64, count=len(known)))
        weights += 1.0
        weights *= self.idf[rows]
        weights /= np.sqrt(weights @ weights)
        projected: NDArray[np.float32] = np.dot(weights.astype(np.float32), self.directions[rows])
        return projected.astype(np.float64)


class Forest(msgspec.Struct, frozen=True, dict=True):
    """Boosted trees of at most 16 leaves for several outputs, evaluated all at once.

    A tree's leaves are numbered from left to right. Every inner node whose test `x[feature] <= threshold` fails
    rules out the leaves on its left; the first leaf that no node rules out is the answer (the idea of QuickScorer,
    Lucchese et al., SIGIR 2015). Shapes, for n trees of each of k outputs, trees of one output side by side:
    `feature`, `threshold`, `keeps`: (15, k x n); `values`: (k x n, 16); `base`: (k,).
    """

    feature: NDArray[np.int16]
    threshold: Floats
    keeps: NDArray[np.uint16]
    values: Floats
    base: Floats

    def evaluate(self, x: Floats) -> Floats:
        """The raw outputs, shape (k,), for the features x of one prompt."""
        failed = x.take(self._columns, mode="clip") > self.threshold
        dead = np.bitwise_or.reduce(self._drops * failed, axis=0)
        first = np.bitwise_count(dead & ~(dead + np.uint16(1)))  # number of ones below the lowest zero
        chosen: Floats = self._leaves[self._starts + first]
        sums: Floats = chosen.reshape(len(self.base), -1).sum(axis=1)
        return self.base + sums

    @cached_property
    def _columns(self) -> NDArray[np.intp]:
        """`feature` as numpy indexes with it: else it would convert 6,000 numbers each time."""
        return self.feature.astype(np.intp)

    @cached_property
    def _drops(self) -> NDArray[np.uint16]:
        """The leaves that a node rules out when its test fails."""
        return ~self.keeps

    @cached_property
    def _leaves(self) -> Floats:
        return self.values.ravel()

    @cached_property
    def _starts(self) -> NDArray[np.intp]:
        """Where each tree's leaves begin."""
        return np.arange(0, self.values.size, LEAVES)


class Line(msgspec.Struct, frozen=True):
    """A straight line: what calibrates one output."""

    slope: float = 1.0
    offset: float = 0.0

    def at(self, raw: float) -> float:
        return self.slope * raw + self.offset


class Model(msgspec.Struct, frozen=True):
    """Everything that is learned. `small` calibrates log odds, `gain` the expected difference of the two scores."""

    vocabulary: Vocabulary
    forest: Forest
    small: Line = Line()
    gain: Line = Line()

    def features(self, text: Text) -> Floats:
        """Projected words, then the hand features: shape (dimensions + hand,)."""
        return np.concatenate((self.vocabulary.project(text.words), text.hand))

    def probabilities(self, text: Text) -> tuple[float, float]:
        """P(small acceptable), P(large acceptable)."""
        raw = self.forest.evaluate(self.features(text))
        small = sigmoid(self.small.at(log_odds(float(raw[SMALL]))))
        return small, min(1.0, max(0.0, small + self.gain.at(float(raw[GAIN]))))


def sigmoid(odds: float) -> float:
    """From log odds to a probability; far out it is exactly 0 or 1 rather than an overflow."""
    return 1.0 / (1.0 + exp(-min(700.0, max(-700.0, odds))))


def log_odds(raw: float) -> float:
    """Of a raw chance, kept off 0 and 1."""
    chance = min(1.0 - SUREST, max(SUREST, raw))
    return log(chance / (1.0 - chance))
