"""Reading labelled files, rule by rule of the evaluation's contract."""

import gzip
import hashlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.errors import DataUnreadable
from classifier.rows import Pairs, digest, find_pairs, fold_of, read_sets

PAIRS = {
    "pooled_order": ["b", "a"],
    "sets": {
        "a": {"file": "a.jsonl.gz", "small": "s", "large": "l", "pooled": True, "may_train": True, "rows": 99},
        "b": {"file": "b.jsonl.gz", "small": "s", "large": "l", "pooled": True},
        "c": {"file": "c.jsonl.gz", "small": "x", "large": "y"},
    },
}


def row(prompt="why?", small=1, large=0, **more):
    return {"id": "1", "benchmark": "q", "subset": "t", "prompt": prompt, "scores": {"s": small, "l": large}, **more}


def write(path, rows):
    text = "".join(json.dumps(one) + "\n" for one in rows).encode()
    path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS))
    return tmp_path


def read(folder):
    return read_sets(folder, find_pairs(folder, None))


def test_missing_files_are_left_out_and_unknown_ones_ignored(folder):
    write(folder / "a.jsonl.gz", [row()])
    (folder / "zzz.jsonl.gz").write_bytes(b"not even gzip")
    assert list(read(folder)) == ["a"]


def test_a_plain_file_stands_in_for_a_packed_one(folder):
    write(folder / "a.jsonl", [row("plain")])
    assert [found.prompt for found in read(folder)["a"]] == ["plain"]
    write(folder / "a.jsonl.gz", [row("packed")])
    assert [found.prompt for found in read(folder)["a"]] == ["packed"]


def test_rows_without_both_scores_are_dropped(folder):
    lacking = [{**row(), "scores": {"s": 1}}, row(large=None), {**row(), "scores": None}, {"prompt": "x"}]
    write(folder / "a.jsonl.gz", [*lacking, row("kept", 0.25, 0.75)])
    write(folder / "b.jsonl.gz", lacking)
    found = read(folder)
    assert list(found) == ["a"]
    assert [(one.prompt, one.small, one.large) for one in found["a"]] == [("kept", 0.25, 0.75)]


def test_scores_may_be_true_or_false(folder):
    write(folder / "a.jsonl.gz", [row(small=False, large=True)])
    assert [(one.small, one.large) for one in read(folder)["a"]] == [(0.0, 1.0)]


def test_file_order_and_duplicates_are_kept(folder):
    write(folder / "a.jsonl.gz", [row("z"), row("a"), row("z")])
    assert [found.prompt for found in read(folder)["a"]] == ["z", "a", "z"]


def test_blank_lines_are_no_rows(folder):
    (folder / "a.jsonl").write_text("\n" + json.dumps(row()) + "\n\n")
    assert len(read(folder)["a"]) == 1


def test_a_prompt_may_hold_lone_surrogates(folder):
    write(folder / "a.jsonl.gz", [row("a\ud800b")])
    assert read(folder)["a"][0].prompt == "a\ud800b"


def test_the_keys_come_from_the_pairs(tmp_path):
    named = {**PAIRS, "prompt_key": "ask", "metric_key": "marks", "subset_key": "part", "benchmark_key": "from"}
    (tmp_path / "pairs.json").write_text(json.dumps(named))
    write(tmp_path / "a.jsonl.gz", [{"ask": "q", "marks": {"s": 1, "l": 0}, "part": "p", "from": "f"}])
    found = read(tmp_path)["a"][0]
    assert (found.prompt, found.subject) == ("q", ("f", "p"))


def test_a_broken_line_is_named(folder):
    (folder / "a.jsonl").write_text(json.dumps(row()) + "\n{oops\n")
    with pytest.raises(DataUnreadable, match=r"a\.jsonl\.gz, line 2"):
        read(folder)


def test_a_file_cut_short_is_an_error(folder):
    write(folder / "a.jsonl.gz", [row()] * 50)
    whole = (folder / "a.jsonl.gz").read_bytes()
    (folder / "a.jsonl.gz").write_bytes(whole[:-12])
    with pytest.raises(DataUnreadable):
        read(folder)


def test_the_pairs_given_win_then_the_folders_then_the_packaged(tmp_path):
    assert "mmlu_pro" in find_pairs(tmp_path, None).sets
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS))
    assert set(find_pairs(tmp_path, None).sets) == {"a", "b", "c"}
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"sets": {"only": {"file": "f", "small": "s", "large": "l"}}}))
    assert set(find_pairs(tmp_path, other).sets) == {"only"}


def test_pairs_that_are_none_are_refused(tmp_path):
    with pytest.raises(DataUnreadable, match=r"nowhere\.json"):
        find_pairs(tmp_path, tmp_path / "nowhere.json")
    (tmp_path / "pairs.json").write_text("[]")
    with pytest.raises(DataUnreadable, match=r"pairs\.json"):
        find_pairs(tmp_path, None)


def test_the_pool_keeps_its_order(tmp_path):
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS))
    pairs = find_pairs(tmp_path, None)
    assert pairs.pooled == ["b", "a"]
    assert Pairs(sets=pairs.sets, pooled_order=["gone", "c"]).pooled == ["a", "b"]


def test_the_packaged_pairs_say_what_may_train(tmp_path):
    pairs = find_pairs(tmp_path, None)
    assert pairs.pooled == ["mmlu_pro", "llmrouter_14tasks", "zeroeval_gsm8k", "zeroeval_math_l5"]
    assert not pairs.sets["alpacaeval2_vs_gpt4_1106"].may_train


def test_the_digest_forgets_case_and_white_space():
    assert digest("  What\n\tIS  it? ") == hashlib.sha256(b"what is it?").hexdigest()


@given(st.text(max_size=60))
def test_the_digest_is_that_of_the_definition(text):
    normal = re.sub(r"\s+", " ", text.lower()).strip()
    assert digest(text) == hashlib.sha256(normal.encode()).hexdigest()


def test_the_fold_is_the_first_eight_digits():
    assert fold_of("0000000c" + "f" * 56, 5) == 12 % 5
