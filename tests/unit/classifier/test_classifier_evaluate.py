"""The evaluation's contract, rule by rule, on small made-up rows."""

import random

import msgspec
import numpy as np
import pytest

from classifier import publish
from classifier.artefact import Artefact, Manifest, load
from classifier.errors import TooLittleData
from classifier.evaluate import METRICS, Bootstrap, Scored, report, with_artefact, with_folds
from classifier.refit import _fold_jobs, _transfer_jobs, by_folds
from classifier.rows import PairedSet, Pairs, Row, digest, fold_of
from classifier.train import Recipe, fit

QUICK = Recipe(dimensions=3, iterations=4, fewest_rows=3)
PAIRS = Pairs(
    sets={
        "one": PairedSet("one", "s", "l", pooled=True, may_train=True),
        "two": PairedSet("two", "s", "l", pooled=True, may_train=False),
        "far": PairedSet("far", "x", "y"),
    },
    pooled_order=["two", "one"],
)


def made(count, seed, subset="t"):
    source = random.Random(seed)
    rows = []
    for _ in range(count):
        prompt = " ".join(source.choices(["cat", "dog", "prove", "sum", "why"], k=source.randint(1, 12)))
        rows.append(
            Row(prompt, float(source.random() < 0.4), float(source.random() < 0.7), digest(prompt), ("made", subset))
        )
    return rows


SETS = {"one": made(60, 1), "two": made(40, 2, "u"), "far": made(30, 3)}


def scored(rows, probability, gain, seen=0):
    return Scored(rows, np.asarray(probability, dtype=float), np.asarray(gain, dtype=float), seen)


def row(small, large, prompt="a", subject=("q", "")):
    return Row(prompt, small, large, digest(prompt), subject)


def test_pooled_is_one_computation_over_all_rows():
    parts = {
        "one": scored([row(1, 1), row(0, 1)], [0.9, 0.2], [0.0, 0.5]),
        "two": scored([row(0, 1), row(1, 0)], [0.4, 0.3], [0.3, 0.4]),
    }
    found = report(parts, PAIRS)
    joined = scored([*parts["two"].rows, *parts["one"].rows], [0.4, 0.3, 0.9, 0.2], [0.3, 0.4, 0.0, 0.5])
    alone = report({"one": joined}, PAIRS)["sets"]["one"]
    assert {key: found["pooled"][key] for key in METRICS} == pytest.approx({key: alone[key] for key in METRICS})
    assert found["pooled"]["n"] == 4
    assert found["pooled"]["auroc"] == 0.75  # of (.9, .3) against (.2, .4)


def test_sets_that_are_not_pooled_are_reported_but_not_pooled():
    found = report({"one": scored([row(1, 1)], [0.5], [0]), "far": scored([row(0, 1)], [0.5], [0])}, PAIRS)
    assert set(found["sets"]) == {"one", "far"}
    assert found["pooled"]["n"] == 1


def test_nothing_pooled_gives_nulls():
    found = report({"far": scored([row(0, 1)], [0.5], [0])}, PAIRS)
    assert [found["pooled"][key] for key in METRICS] == [None] * 6
    assert report({}, PAIRS)["sets"] == {}


def test_every_block_has_the_pinned_keys():
    found = report(with_folds(SETS, PAIRS, 2, QUICK), PAIRS)
    assert set(found) == {"pooled", "sets", "baselines"}
    for block in (found["pooled"], *found["sets"].values()):
        assert set(METRICS) | {"n", "seen_rows"} <= set(block)
    assert set(found["baselines"]) == {"random", "word_count", "subject_oracle"}
    for kind in found["baselines"].values():
        assert set(kind["sets"]) == set(SETS)
        for block in (kind["pooled"], *kind["sets"].values()):
            assert {"apgr", "cpt50", "cpt80"} <= set(block)


def test_random_is_exact():
    found = report({"one": scored([row(0, 1)], [0.5], [0])}, PAIRS)["baselines"]["random"]
    for block in (found["pooled"], found["sets"]["one"]):
        assert (block["apgr"], block["cpt50"], block["cpt80"]) == (0.5, 50, 80)


def test_word_count_sends_the_longer_prompt_to_the_large_model():
    rows = [row(0, 1, "three  words\nhere"), row(1, 1, "one")]
    found = report({"one": scored(rows, [0.5, 0.5], [0, 0])}, PAIRS)
    assert found["baselines"]["word_count"]["sets"]["one"]["apgr"] == 0.75
    assert found["sets"]["one"]["apgr"] == 0.5  # the classifier's own scores were equal


def test_the_subject_oracle_knows_the_mean_of_each_subject():
    rows = [
        row(0, 1, subject=("q", "a")),
        row(1, 1, subject=("q", "b")),
        row(0, 1, subject=("q", "a")),
        row(1, 1, subject=("p", "a")),
    ]
    found = report({"one": scored(rows, [0.5] * 4, [0] * 4)}, PAIRS)["baselines"]["subject_oracle"]
    assert found["sets"]["one"]["apgr"] == 0.75
    assert found["sets"]["one"]["cpt50"] == pytest.approx(25)


def test_seen_prompts_are_dropped_and_counted():
    rows = made(20, 9)
    held = Artefact(
        Manifest(version="t", prompts=(digest(f"  {rows[3].prompt.upper()} "),)), fit(SETS["one"], QUICK).model
    )
    seen = sum(one.digest == rows[3].digest for one in rows)
    found = report(with_artefact(held, {"one": rows, "far": rows[3:4]}), PAIRS)
    assert found["sets"]["one"]["seen_rows"] == seen
    assert found["sets"]["one"]["n"] == 20 - seen
    assert found["pooled"]["seen_rows"] == seen
    assert (found["sets"]["far"]["n"], found["sets"]["far"]["seen_rows"], found["sets"]["far"]["apgr"]) == (0, 1, None)


def test_a_fold_is_never_scored_by_a_model_that_saw_it():
    jobs = list(_fold_jobs(SETS, PAIRS, 5))
    assert sorted(place for job in jobs for place in job.places) == sorted(
        (name, at) for name in ("one", "two") for at in range(len(SETS[name]))
    )
    for job in jobs:
        held = {fold_of(one.digest, 5) for one in job.score}
        assert len(held) == 1
        assert held.isdisjoint(fold_of(one.digest, 5) for one in job.learn)
        assert len(job.learn) + len(job.score) == 100


def test_a_set_that_is_not_pooled_is_scored_without_its_prompts():
    [job] = _transfer_jobs(SETS, PAIRS)
    mine = {one.digest for one in SETS["far"]}
    assert job.score == SETS["far"]
    assert mine.isdisjoint(one.digest for one in job.learn)
    assert len(job.learn) == sum(one.digest not in mine for name in ("one", "two") for one in SETS[name])


def test_sets_that_share_the_same_prompts_share_a_model():
    three = Pairs(sets={**PAIRS.sets, "again": PairedSet("again", "p", "q")}, pooled_order=PAIRS.pooled_order)
    jobs = list(_transfer_jobs({**SETS, "again": SETS["far"]}, three))
    assert len(jobs) == 1
    assert len(jobs[0].score) == 60


def test_each_score_comes_from_its_own_fold():
    found = by_folds(SETS, PAIRS, 3, QUICK)
    pooled = SETS["two"] + SETS["one"]
    target = SETS["one"][7]
    alone = fit([one for one in pooled if fold_of(one.digest, 3) != fold_of(target.digest, 3)], QUICK)
    expected = report({"one": scored([target], *np.array([found["one"][7]]).T)}, PAIRS)["pooled"]["brier"]
    small = alone.model.probabilities(__import__("classifier.features", fromlist=["read"]).read(target.prompt))[0]
    assert found["one"][7][0] == small
    assert expected == pytest.approx((small - target.small) ** 2)


def test_processes_change_nothing():
    alone, together = (by_folds(SETS, PAIRS, 2, QUICK, workers=workers) for workers in (1, 2))
    for name in SETS:
        assert np.array_equal(alone[name], together[name])


def test_folds_of_one_single_prompt():
    rows = [row(1, 1, "same"), row(0, 1, "SAME ")]
    found = report(with_folds({"one": rows}, PAIRS, 5, QUICK), PAIRS)
    assert found["pooled"]["n"] == 2
    assert found["pooled"]["auroc"] == 0.5


def test_only_sets_that_are_not_pooled_still_get_a_report():
    found = report(with_folds({"far": SETS["far"]}, PAIRS, 5, QUICK), PAIRS)
    assert found["pooled"]["auroc"] is None
    assert found["sets"]["far"]["apgr"] == pytest.approx(0.5)


def test_intervals_when_asked():
    part = {"one": scored(SETS["one"], np.linspace(0, 1, 60), np.linspace(1, 0, 60))}
    assert "intervals" not in report(part, PAIRS)["pooled"]
    low, high = report(part, PAIRS, Bootstrap(draws=40))["pooled"]["intervals"]["auroc"]
    assert low < report(part, PAIRS)["pooled"]["auroc"] < high


def test_only_what_may_train_trains(tmp_path):
    manifest = publish.train(SETS, PAIRS, QUICK, tmp_path / "x.npz")
    assert [(one.name, one.rows) for one in manifest.sets] == [("one", 60)]
    assert set(manifest.prompts) == {one.digest for one in SETS["one"]}
    assert load(tmp_path / "x.npz").manifest == manifest
    assert set(manifest.metrics) == set(METRICS)


def test_the_same_seed_gives_the_same_file(tmp_path):
    for name in ("a.npz", "b.npz"):
        publish.train(SETS, PAIRS, QUICK, tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_nothing_may_train(tmp_path):
    closed = msgspec.structs.replace(
        PAIRS, sets={name: msgspec.structs.replace(one, may_train=False) for name, one in PAIRS.sets.items()}
    )
    with pytest.raises(TooLittleData):
        publish.train(SETS, closed, QUICK, tmp_path / "x.npz")
