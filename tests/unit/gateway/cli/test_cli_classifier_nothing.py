"""`turnout classifier evaluate` on a folder without anything to evaluate: the report stands, and a line says why."""

import json

import pytest
from click.testing import CliRunner

from gateway.cli.classifier import command

PAIRS = {"sets": {"support": {"file": "support.jsonl.gz", "small": "s", "large": "l", "pooled": True}}}


def evaluate(folder, *more):
    return CliRunner().invoke(command, ["evaluate", "--data", str(folder), *more])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS))
    return tmp_path


def test_an_empty_folder_is_told_on_standard_error_alone(folder):
    made = evaluate(folder, "--json")
    assert made.exit_code == 0
    assert json.loads(made.stdout)["pooled"]["apgr"] is None
    assert made.stderr == f"{folder}: nothing to evaluate: no row has both scores. Files looked for: support.jsonl.gz\n"


def test_rows_with_one_score_are_nothing(folder):
    (folder / "support.jsonl").write_text('{"prompt": "Why?", "scores": {"s": 1.0}}\n')
    assert "no row has both scores" in evaluate(folder).stderr


def test_a_row_with_both_scores_is_something(folder):
    (folder / "support.jsonl").write_text('{"prompt": "Why?", "scores": {"s": 1.0, "l": 0.0}}\n')
    made = evaluate(folder, "--json")
    assert made.stderr == ""
    assert json.loads(made.stdout)["pooled"]["n"] == 1


def test_no_set_at_all(folder):
    (folder / "pairs.json").write_text('{"sets": {}}')
    assert evaluate(folder).stderr.endswith("Files looked for: none\n")
