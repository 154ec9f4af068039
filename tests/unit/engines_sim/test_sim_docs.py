from pathlib import Path

import pytest

from engines.sim.faults import FAULTS

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "simulator.md").read_text()


@pytest.mark.parametrize("name", FAULTS)
def test_the_guide_has_every_fault_in_its_own_words(name):
    kind = FAULTS[name]
    order = f"{name}:N" if kind.default is not None else name
    assert f"| `{order}` | {kind.doc} |" in GUIDE
