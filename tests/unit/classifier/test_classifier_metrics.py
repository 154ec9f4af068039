"""Metrics against cases worked out by hand, and against slow definitions."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.metrics import Labels, auroc, brier, curve, ece, intervals, measure, ordering

few = st.sampled_from([0.0, 0.2, 0.5, 0.9])
scores = st.sampled_from([0.0, 0.4, 0.5, 1.0])
rows = st.lists(st.tuples(few, few, scores, scores), min_size=1, max_size=25)


def arrays(drawn):
    columns = np.array(drawn, dtype=np.float64).T
    return columns[0], columns[1], Labels(columns[2], columns[3])


def test_auroc_by_hand():
    # pairs (positive, negative): (.8,.5) won, (.8,.5) won, (.5,.5) tied twice -> 3 of 4
    assert auroc(np.array([0.8, 0.5, 0.5, 0.5]), np.array([1.0, 1.0, 0.0, 0.0])) == 0.75


def test_auroc_needs_both_classes():
    assert auroc(np.array([0.1, 0.2]), np.array([1.0, 1.0])) is None
    assert auroc(np.array([]), np.array([])) is None


@given(rows)
def test_auroc_is_the_share_of_pairs_in_order(drawn):
    score, _, labels = arrays(drawn)
    positive = score[labels.acceptable == 1]
    negative = score[labels.acceptable == 0]
    if not len(positive) or not len(negative):
        assert auroc(score, labels.acceptable) is None
        return
    won = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    assert auroc(score, labels.acceptable) == pytest.approx(np.mean(won))


def test_the_curve_by_hand():
    # gaps in order of v: 1, 0, 1, -1 -> recovered 1, 1, 2, 1 of a total of 1
    labels = Labels(small=np.array([0.0, 1.0, 0.0, 1.0]), large=np.array([1.0, 1.0, 1.0, 0.0]))
    block = ordering(np.array([4.0, 3.0, 2.0, 1.0]), labels)
    assert block.apgr == pytest.approx(0.25 * (0.5 + 1 + 1.5 + 1.5))
    assert block.cpt50 == pytest.approx(12.5)
    assert block.cpt80 == pytest.approx(20.0)


def test_recovered_share_is_not_clipped():
    labels = Labels(small=np.array([1.0, 0.0, 0.0]), large=np.array([0.0, 1.0, 1.0]))
    below = curve(np.array([3.0, 2.0, 1.0]), labels.gap)
    above = curve(np.array([1.0, 2.0, 3.0]), labels.gap)
    assert below is not None and above is not None
    assert below.recovered.min() == -1.0
    assert above.recovered.max() == 2.0


def test_a_share_first_reached_counts_even_if_it_is_lost_again():
    labels = Labels(small=np.array([0.0, 1.0, 0.0]), large=np.array([1.0, 0.0, 1.0]))
    assert ordering(np.array([3.0, 2.0, 1.0]), labels).cpt80 == pytest.approx(100 * 0.8 / 3)


def test_equal_scores_are_one_straight_line():
    labels = Labels(small=np.array([0.0, 1.0, 0.0, 1.0]), large=np.array([1.0, 1.0, 1.0, 1.0]))
    block = ordering(np.zeros(4), labels)
    assert (block.apgr, block.cpt50, block.cpt80) == pytest.approx((0.5, 50, 80))


def test_a_large_model_that_gains_nothing_has_no_curve():
    labels = Labels(small=np.array([1.0, 0.0]), large=np.array([0.0, 1.0]))
    block = ordering(np.array([1.0, 2.0]), labels)
    assert (block.n, block.apgr, block.cpt50, block.cpt80) == (2, None, None, None)


@given(rows)
def test_the_curve_by_brute_force(drawn):
    _, order, labels = arrays(drawn)
    total = labels.gap.sum()
    block = ordering(order, labels)
    if total <= 0:
        assert block.apgr is None
        return
    points = [(0.0, 0.0)]
    for value in sorted(set(order), reverse=True):
        chosen = order >= value
        points.append((chosen.mean(), labels.gap[chosen].sum() / total))
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
    assert block.apgr == pytest.approx(area)
    for share, found in ((0.5, block.cpt50), (0.8, block.cpt80)):
        steps = itertools.pairwise(points)
        x = next(a[0] + (b[0] - a[0]) * (share - a[1]) / (b[1] - a[1]) for a, b in steps if b[1] >= share)
        assert found == pytest.approx(100 * x)


@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_a_file_never_matters_to_auroc_and_the_curve(drawn, random):
    shuffled = random.sample(drawn, len(drawn))
    p, v, labels = arrays(drawn)
    p2, v2, labels2 = arrays(shuffled)
    first, second = measure(p, v, labels), measure(p2, v2, labels2)
    for name in ("auroc", "apgr", "cpt50", "cpt80", "brier"):
        one, other = getattr(first, name), getattr(second, name)
        assert (one is None) == (other is None)
        assert one is None or one == pytest.approx(other)


@given(rows)
def test_a_perfect_order_is_never_beaten(drawn):
    _, order, labels = arrays(drawn)
    best = ordering(labels.gap, labels)
    assert best.apgr is None or best.apgr >= ordering(order, labels).apgr - 1e-12


def test_calibration_by_hand():
    # eleven rows: the first bin holds two, the others one
    p = np.linspace(0, 1, 11)
    y = np.zeros(11)
    expected = (2 * abs(0.05 - 0) + sum(abs(x) for x in p[2:])) / 11
    assert ece(p, y) == pytest.approx(expected)


def test_calibration_with_fewer_rows_than_bins():
    assert ece(np.array([0.25, 0.5]), np.array([0.0, 1.0])) == pytest.approx(0.375)
    assert ece(np.array([]), np.array([])) is None


def test_rows_of_equal_probability_stay_in_file_order():
    y = np.array([1.0] * 10 + [0.0] * 10)
    assert ece(np.full(20, 0.5), y) == pytest.approx(0.5)


@given(rows)
def test_calibration_lies_between_the_bias_and_one(drawn):
    p, _, labels = arrays(drawn)
    found = ece(p, labels.acceptable)
    assert found is not None
    assert abs(p.mean() - labels.acceptable.mean()) - 1e-12 <= found <= 1


def test_brier():
    assert brier(np.array([0.5, 1.0]), np.array([1.0, 1.0])) == 0.125
    assert brier(np.array([]), np.array([])) is None


def test_acceptable_starts_at_the_threshold():
    assert Labels(np.array([0.49, 0.5]), np.zeros(2)).acceptable.tolist() == [0.0, 1.0]
    assert Labels(np.array([0.49, 0.5]), np.zeros(2), acceptable_at=0.4).acceptable.tolist() == [1.0, 1.0]


def test_the_gap_is_not_thresholded():
    labels = Labels(np.array([0.25]), np.array([0.75]))
    assert labels.gap.tolist() == [0.5]


def test_intervals_hold_the_value_and_repeat_by_seed():
    source = np.random.default_rng(1)
    small = (source.random(300) < 0.5).astype(float)
    large = (source.random(300) < 0.8).astype(float)
    p = np.clip(small * 0.3 + source.random(300) * 0.7, 0, 1)
    labels = Labels(small, large)
    first = intervals(p, -p, labels, draws=50, random=np.random.default_rng(7))
    again = intervals(p, -p, labels, draws=50, random=np.random.default_rng(7))
    assert first == again
    block = measure(p, -p, labels)
    for name in ("auroc", "apgr", "brier"):
        low, high = first[name]
        assert low < getattr(block, name) < high


def test_no_rows_no_intervals():
    nothing = np.zeros(0)
    assert intervals(nothing, nothing, Labels(nothing, nothing), draws=5, random=np.random.default_rng(0)) == {}
