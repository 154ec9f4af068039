import re
from pathlib import Path

import pytest

import engines.sim
from engines.sim.faults import FAULTS, Faults, UnknownFault


def test_an_order_names_faults_with_and_without_numbers():
    faults = Faults("cut:5, slow:0.25,no-done")
    assert faults["cut"] == 5
    assert faults["slow"] == 0.25
    assert "no-done" in faults
    assert faults["silence"] is None
    assert "silence" not in faults


def test_no_order_is_no_fault():
    assert not any(name in Faults("") for name in FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_has_a_line_of_doc_and_can_be_ordered_bare(name):
    kind = FAULTS[name]
    assert kind.doc
    assert "\n" not in kind.doc
    assert Faults(name)[name] == (kind.default if kind.default is not None else 1.0)


@pytest.mark.parametrize("order", ["nonsense", "cut:x", "gzip:3", "cut:5,oops"])
def test_an_order_that_makes_no_sense_is_refused(order):
    with pytest.raises(UnknownFault, match="fault"):
        Faults(order)


@pytest.mark.parametrize(
    ("order", "refusal"), [("429:30", (429, 30)), ("503", (503, None)), ("500", (500, None)), ("cut", None)]
)
def test_refusals(order, refusal):
    assert Faults(order).refusal() == refusal


def test_a_fault_strikes_in_place_of_the_token_after_its_number():
    faults = Faults("cut:3")
    assert [faults.strikes("cut", sent, 1) for sent in range(5)] == [False, False, False, True, True]
    assert not faults.strikes("cut", 9, 0)  # frames without tokens pass
    assert faults.strikes("cut", 2, 2)
    assert not faults.strikes("silence", 9, 1)


def test_every_fault_is_looked_at_somewhere():
    """A row of the table that no code asks for would be an empty promise."""
    folder = Path(engines.sim.__file__).parent
    code = "".join(path.read_text() for path in folder.glob("*.py") if path.name != "faults.py")
    code += (folder / "faults.py").read_text().partition("class Faults")[2]
    assert [name for name in FAULTS if not re.search(rf'"{re.escape(name)}"', code)] == []
