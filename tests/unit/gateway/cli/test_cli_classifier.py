"""`turnout classifier`: one JSON object or a table on standard output, everything else on standard error."""

import gzip
import json
import random

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.cli.classifier import table

METRICS = {"auroc", "apgr", "cpt50", "cpt80", "ece", "brier"}
PAIRS = {
    "pooled_order": ["a"],
    "sets": {
        "a": {"file": "a.jsonl.gz", "small": "s", "large": "l", "pooled": True, "may_train": True},
        "b": {"file": "b.jsonl.gz", "small": "s", "large": "l"},
    },
}


@pytest.fixture
def folder(tmp_path):
    source = random.Random(0)
    for name in ("a", "b"):
        rows = [
            {
                "prompt": f"{name} {number} {source.choice(['cat', 'prove'])}",
                "scores": {"s": number % 2, "l": int(number % 3 > 0)},
            }
            for number in range(40)
        ]
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, ["classifier", *map(str, arguments)])


def test_the_shipped_artefact_in_json(folder):
    result = run("evaluate", "--data", folder, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(report["sets"]) == {"a", "b"}
    assert set(report["pooled"]) >= METRICS
    assert result.stdout.count("\n") == 1


def test_folds_in_json_with_the_log_beside(folder, caplog):
    caplog.set_level("INFO", logger="classifier")
    result = run("evaluate", "--data", folder, "--cv", 2, "--json", "--bootstrap", 5)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["pooled"]["n"] == 40
    assert "auroc" in report["pooled"]["intervals"]
    assert "fitted 1 of" in caplog.text


def test_a_table_for_people(folder):
    lines = run("evaluate", "--data", folder).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["pooled", "a", "b"]
    assert "AUROC" in lines[0]
    assert "word_count" in lines[0]


def test_an_empty_folder_is_no_error(tmp_path):
    result = run("evaluate", "--data", tmp_path, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["pooled"]["auroc"] is None
    assert run("evaluate", "--data", tmp_path, "--cv", 5).exit_code == 0


def test_nulls_are_dashes():
    block = dict.fromkeys(METRICS) | {"n": 3, "seen_rows": 2}
    lines = table(
        {"pooled": block, "sets": {}, "baselines": {"random": {"pooled": {"apgr": 0.5}, "sets": {}}}}
    ).splitlines()
    assert lines[1].split()[:4] == ["pooled", "3", "-", "-"]
    assert "2 trained on" in lines[1]


def test_train_then_evaluate_drops_what_was_trained_on(folder, tmp_path):
    output = tmp_path / "new.npz"
    trained = run("train", "--data", folder, "--output", output)
    assert trained.exit_code == 0, trained.output
    assert "a: 40 rows" in trained.stdout
    result = run("evaluate", "--data", folder, "--model", output, "--json")
    report = json.loads(result.stdout)
    assert report["pooled"]["seen_rows"] == 40
    assert (report["sets"]["a"]["n"], report["sets"]["a"]["auroc"]) == (0, None)
    assert report["sets"]["b"]["n"] == 40


def test_a_broken_artefact_is_one_line(folder, tmp_path):
    (tmp_path / "bad.npz").write_text("no")
    result = run("evaluate", "--data", folder, "--model", tmp_path / "bad.npz")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "not a classifier artefact" in result.stderr.splitlines()[-1]


def test_broken_pairs_are_one_line(folder):
    (folder / "pairs.json").write_text("{")
    result = run("evaluate", "--data", folder, "--json")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")


def test_other_pairs_may_be_given(folder, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"sets": {"only": {"file": "b.jsonl.gz", "small": "s", "large": "l", "pooled": True}}}))
    report = json.loads(run("evaluate", "--data", folder, "--pairs", other, "--json").stdout)
    assert set(report["sets"]) == {"only"}
    assert report["pooled"]["n"] == 40


def test_model_and_folds_exclude_each_other(folder):
    assert run("evaluate", "--data", folder, "--model", "x.npz", "--cv", 2).exit_code == 2
    assert run("evaluate", "--data", folder, "--cv", 1).exit_code == 2


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_help_has_an_example(name):
    assert f"Example: turnout classifier {name} --data" in " ".join(run(name, "--help").stdout.split())
