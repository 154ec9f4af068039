"""The shipped artefact: sound, honest about its training, and right about which prompts gain from a large model."""

import subprocess
import sys
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier import artefact
from classifier.prompt import from_messages, from_text
from classifier.rows import find_pairs
from classifier.score import Scorer

SCORER = Scorer.load()
MANIFEST = artefact.load().manifest
PROOF = (
    "Let $G$ be a finite group of order $p^2 q$ where $p$ and $q$ are distinct primes. Prove, step by step and with full "
    "justification, that $G$ is not simple. Begin by stating Sylow's theorems precisely and use them to bound the number of "
    "Sylow $p$-subgroups and of Sylow $q$-subgroups. Treat the cases $p > q$ and $p < q$ separately. Finally, discuss whether "
    "the statement remains true for groups of order $p^2 q^2$, and give a rigorous argument or a counterexample."
)


def gain(text):
    return SCORER.difficulty(from_text(text)).gain


def test_a_sum_gains_less_than_a_proof():
    assert gain("What is 2+2?") + 0.03 < gain(PROOF)


def test_a_greeting_gains_less_than_a_proof():
    assert gain("hi") < gain(PROOF)


@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=200))
def test_any_text_has_chances(text):
    found = SCORER.difficulty(from_text(text))
    assert 0 <= found.small <= 1
    assert 0 <= found.large <= 1
    assert found.gain == found.large - found.small
    assert found == SCORER.difficulty(from_text(text))


@pytest.mark.parametrize("text", ["", " ", "?", "\ud800", "\ud800" * 50, "请证明根号二是无理数。", "\x00", "a" * 5000])
def test_odd_texts(text):
    assert SCORER.difficulty(from_text(text)).version == MANIFEST.version


def test_a_megabyte_is_read_in_part():
    middle = "x" * 1_000_000
    head, tail = "What is " * 400, " the answer?" * 400
    assert gain(head + middle + tail) == gain(head + "y" * 1_000_000 + tail)


def test_a_request_scores_as_its_last_turn():
    body = b'[{"role":"system","content":"s"},{"role":"user","content":"What is 2+2?"}]'
    assert SCORER.difficulty(from_messages(body)) == SCORER.difficulty(from_text("What is 2+2?"))


def test_only_sets_with_leave_trained_it(tmp_path):
    pairs = find_pairs(tmp_path, None)
    assert MANIFEST.sets
    for trained in MANIFEST.sets:
        assert pairs.sets[trained.name].may_train
        assert trained.licence.startswith(("Apache-2.0", "MIT"))


def test_the_manifest_knows_every_prompt():
    assert all(len(prompt) == 64 and int(prompt, 16) >= 0 for prompt in MANIFEST.prompts)
    assert 0 < len(MANIFEST.prompts) <= sum(trained.rows for trained in MANIFEST.sets)


def test_it_is_small():
    assert len((resources.files("classifier") / "data" / artefact.PACKAGED).read_bytes()) < 3_000_000


def test_scoring_never_imports_scikit_learn():
    program = (
        "import sys; from classifier.score import Scorer; from classifier.prompt import from_text;"
        "Scorer.load().difficulty(from_text('a cat'));"
        "sys.exit(any(name.split('.')[0] in ('sklearn', 'scipy', 'joblib') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
