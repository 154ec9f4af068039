"""Training: the arrays are scikit-learn's own pipeline; few, odd or one-sided rows still give a model."""

import random

import numpy as np
import pytest

from classifier.errors import TooLittleData
from classifier.features import HAND, read
from classifier.model import SMALL, log_odds
from classifier.prompt import from_text
from classifier.rows import Row, digest
from classifier.train import Recipe, fit, softened

QUICK = Recipe(dimensions=6, iterations=12, fewest_rows=5, half=False)
TOPICS = {
    "easy": ["cat", "dog", "sum", "red"],
    "hard": ["prove", "integral", "theorem", "measure"],
    "both": ["the", "of", "and", "is"],
}


def made(count, seed=0, others=True):
    """Synthetic rows: prompts with hard words are right for the small model less often."""
    source = random.Random(seed)
    rows = []
    for number in range(count):
        hard = source.random() < 0.5
        words = source.choices(TOPICS["hard" if hard else "easy"] + TOPICS["both"], k=source.randint(3, 20))
        prompt = f"{' '.join(words)} {number}{'?' * source.randint(0, 2)}"
        small, large, third = (
            float(source.random() < (one if hard else two)) for one, two in ((0.2, 0.9), (0.7, 0.95), (0.4, 0.9))
        )
        rows.append(Row(prompt, small, large, digest(prompt), ("made", ""), {"third": third} if others else {}))
    return rows


ROWS = made(500)
FITTED = fit(ROWS, QUICK)


def test_the_arrays_are_the_pipeline_of_scikit_learn():
    fresh = [read(from_text(row.prompt).text) for row in made(200, seed=1)]
    projected = FITTED.projection.transform(FITTED.vectorizer.transform(fresh))
    features = np.concatenate((projected, [text.hand for text in fresh]), axis=1)
    small, gain = (boosting.predict(features) for boosting in FITTED.boostings)
    expected_small = FITTED.platt.predict_proba([[log_odds(raw)] for raw in small])[:, 1]
    expected_large = np.clip(expected_small + FITTED.model.gain.slope * gain + FITTED.model.gain.offset, 0, 1)
    found = np.array([FITTED.model.probabilities(text) for text in fresh])
    assert np.allclose(found[:, 0], expected_small, atol=1e-6, rtol=0)
    assert np.allclose(found[:, 1], expected_large, atol=1e-6, rtol=0)


def test_half_precision_moves_probabilities_little():
    halved = fit(ROWS, Recipe(dimensions=6, iterations=12, fewest_rows=5)).model
    texts = [read(row.prompt) for row in made(100, seed=2)]
    apart = [abs(halved.probabilities(text)[0] - FITTED.model.probabilities(text)[0]) for text in texts]
    assert float(np.median(apart)) < 0.05


def test_it_learns_what_is_there():
    hard = FITTED.model.probabilities(read("prove the integral theorem of measure"))
    easy = FITTED.model.probabilities(read("the sum of red cat and dog"))
    assert hard[0] + 0.2 < easy[0]
    assert hard[1] - hard[0] > easy[1] - easy[0]


def test_probabilities_are_calibrated_on_rows_it_never_saw():
    fresh = made(800, seed=5)
    predicted = np.mean([FITTED.model.probabilities(read(row.prompt)) for row in fresh], axis=0)
    assert predicted[0] == pytest.approx(np.mean([row.small for row in fresh]), abs=0.06)
    assert predicted[1] == pytest.approx(np.mean([row.large for row in fresh]), abs=0.06)


def test_the_same_rows_and_seed_give_the_same_arrays():
    again = fit(ROWS, QUICK).model
    assert np.array_equal(again.forest.values, FITTED.model.forest.values)
    assert np.array_equal(again.forest.threshold, FITTED.model.forest.threshold)
    assert np.array_equal(again.vocabulary.directions, FITTED.model.vocabulary.directions)
    assert (again.small, again.gain) == (FITTED.model.small, FITTED.model.gain)


def test_another_seed_gives_other_arrays():
    other = fit(ROWS, Recipe(seed=1, dimensions=6, iterations=12, fewest_rows=5, half=False)).model
    assert not np.array_equal(other.forest.threshold, FITTED.model.forest.threshold)


def test_no_rows_are_refused():
    with pytest.raises(TooLittleData):
        fit([], QUICK)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_handful_of_rows_is_enough(count):
    small, large = fit(made(count), Recipe()).model.probabilities(read("anything"))
    assert 0 <= small <= 1
    assert 0 <= large <= 1


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_one_sided_labels(score):
    rows = [Row(row.prompt, score, score, row.digest) for row in ROWS[:250]]
    small, large = fit(rows, QUICK).model.probabilities(read("the cat"))
    assert abs(small - score) < 0.1
    assert large == pytest.approx(small, abs=0.01)


def test_prompts_without_a_word():
    rows = [Row("?" * number, float(number % 2), 1.0, digest("?" * number)) for number in range(30)]
    model = fit(rows, QUICK).model
    assert model.vocabulary.project([b"new"]).shape == (0,)
    assert 0 <= model.probabilities(read(""))[0] <= 1


def test_the_acceptable_threshold_is_the_pairs_own():
    rows = [Row(row.prompt, 0.4, 1.0, row.digest) for row in ROWS[:250]]
    assert fit(rows, QUICK, acceptable_at=0.3).model.probabilities(read("the cat"))[0] > 0.9
    assert fit(rows, QUICK, acceptable_at=0.5).model.probabilities(read("the cat"))[0] < 0.1


def test_unknown_words_say_nothing():
    model = FITTED.model
    assert not model.vocabulary.project([b"zzzz", b"qqqq"]).any()
    known = model.vocabulary.project([b"cat", b"dog"])
    assert np.allclose(model.vocabulary.project([b"cat", b"zzzz", b"dog"]), known)


def test_features_are_words_then_hand():
    assert FITTED.model.features(read("cat")).shape == (6 + len(HAND),)
    assert len(FITTED.model.forest.evaluate(FITTED.model.features(read("cat")))) == 2


def test_softening_mixes_in_what_other_models_did():
    truth = np.array([[row.small, row.large - row.small] for row in ROWS])
    soft = softened(truth, ROWS, Recipe(teaching=0.5))
    assert np.all(abs(soft[:, SMALL] - truth[:, SMALL]) <= 0.5)
    right = soft[[row.others["third"] == 1 for row in ROWS], SMALL].mean()
    wrong = soft[[row.others["third"] == 0 for row in ROWS], SMALL].mean()
    assert right > wrong
    assert np.array_equal(softened(truth, ROWS, Recipe(teaching=0.0)), truth)


def test_nothing_is_softened_without_other_models():
    rows = made(300, others=False)
    truth = np.array([[row.small, row.large - row.small] for row in rows])
    assert np.array_equal(softened(truth, rows, Recipe()), truth)


def test_a_teacher_never_saw_the_prompt_it_teaches():
    rows = [
        Row(row.prompt, row.small, row.large, row.digest, others={"third": float(number)})
        for number, row in enumerate(ROWS)
    ]
    one = np.array([[row.small, 0.0] for row in rows])
    other = one.copy()
    other[7] = 1 - other[7]
    first, second = (softened(truth, rows, Recipe(teaching=1.0)) for truth in (one, other))
    assert np.array_equal(first[7], second[7])
