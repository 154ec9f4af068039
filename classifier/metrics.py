"""How good a router's scores are: AUROC, the recovered performance gap and its area, calibration."""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BINS: Final = 10


class Labels(msgspec.Struct, frozen=True):
    """Scores in [0, 1] of the small and the large model on the same rows, as arrays of equal length."""

    small: Floats
    large: Floats
    acceptable_at: float = 0.5

    @property
    def acceptable(self) -> Floats:
        """1.0 where the small model's answer is acceptable, else 0.0."""
        return (self.small >= self.acceptable_at).astype(np.float64)

    @property
    def gap(self) -> Floats:
        """What the large model adds on each row; may be negative."""
        return self.large - self.small


class Block(msgspec.Struct, frozen=True):
    """The metrics of one group of rows. None: not defined on these rows. CPT in percent of calls."""

    n: int
    auroc: float | None = None
    apgr: float | None = None
    cpt50: float | None = None
    cpt80: float | None = None
    ece: float | None = None
    brier: float | None = None


class Curve(msgspec.Struct, frozen=True):
    """Share of the performance gap that is recovered by share of calls to the large model, both from 0 to 1.

    Rows of equal score are one straight segment, so the order of the rows of a file never matters.
    """

    calls: Floats
    recovered: Floats

    @property
    def area(self) -> float:
        return float(np.sum(np.diff(self.calls) * (self.recovered[1:] + self.recovered[:-1])) / 2)

    def calls_for(self, share: float) -> float:
        """Percent of large calls at which the curve first reaches this share of the gap (above 0, at most 1)."""
        after = int(np.argmax(self.recovered >= min(share, float(self.recovered.max()))))
        low, high = self.recovered[after - 1], self.recovered[after]
        start, end = self.calls[after - 1], self.calls[after]
        return float(100 * (start + (end - start) * (share - low) / (high - low)))


def curve(order: Floats, gap: Floats) -> Curve | None:
    """The curve of sending the rows of the highest `order` first. None where the large model gains nothing in all."""
    total = float(gap.sum())
    if not len(gap) or total <= 0:
        return None
    ranked = np.argsort(-order, kind="stable")
    sorted_order = order[ranked]
    ends = np.append(np.flatnonzero(sorted_order[1:] != sorted_order[:-1]), len(gap) - 1)
    recovered = np.cumsum(gap[ranked])[ends] / total
    calls = (ends + 1) / len(gap)
    return Curve(calls=np.concatenate(([0.0], calls)), recovered=np.concatenate(([0.0], recovered)))


def auroc(score: Floats, positive: Floats) -> float | None:
    """P(a positive row scores above a negative one), ties half; from mid-ranks. None with one class only."""
    ones = int(positive.sum())
    zeros = len(positive) - ones
    if not ones or not zeros:
        return None
    _, group, counts = np.unique(score, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[group]
    return float((ranks[positive > 0].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def ece(probability: Floats, positive: Floats) -> float | None:
    """Expected calibration error over ten bins of equal mass (the first n mod 10 one row larger)."""
    if not len(positive):
        return None
    order = np.argsort(probability, kind="stable")
    bins = [part for part in np.array_split(order, BINS) if len(part)]
    off = [len(part) * abs(float(probability[part].mean() - positive[part].mean())) for part in bins]
    return sum(off) / len(positive)


def brier(probability: Floats, positive: Floats) -> float | None:
    return float(np.mean((probability - positive) ** 2)) if len(positive) else None


def ordering(order: Floats, labels: Labels) -> Block:
    """The metrics that need an order alone."""
    drawn = curve(order, labels.gap)
    return Block(
        n=len(order),
        apgr=drawn.area if drawn else None,
        cpt50=drawn.calls_for(0.5) if drawn else None,
        cpt80=drawn.calls_for(0.8) if drawn else None,
    )


def measure(probability: Floats, order: Floats, labels: Labels) -> Block:
    """All metrics. `probability`: of the small model being acceptable. `order`: highest goes to the large model."""
    return msgspec.structs.replace(
        ordering(order, labels),
        auroc=auroc(probability, labels.acceptable),
        ece=ece(probability, labels.acceptable),
        brier=brier(probability, labels.acceptable),
    )


def intervals(
    probability: Floats, order: Floats, labels: Labels, *, draws: int, random: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """95 % bootstrap intervals (percentiles over rows drawn with replacement) of the metrics that are defined."""
    seen: dict[str, list[float]] = {}
    for _ in range(draws if len(order) else 0):
        rows = random.integers(0, len(order), len(order))
        part = Labels(labels.small[rows], labels.large[rows], labels.acceptable_at)
        block = msgspec.structs.asdict(measure(probability[rows], order[rows], part))
        for name, value in block.items():
            if name != "n" and value is not None:
                seen.setdefault(name, []).append(value)
    bounds = {name: np.percentile(values, [2.5, 97.5]) for name, values in seen.items()}
    return {name: (float(pair[0]), float(pair[1])) for name, pair in bounds.items()}
