"""Real weights for tests: fetched and built once a checkout, shared by all tests that need them.

Use it as `models.test_data()`: a test module that imported the function itself would have it collected as a test.
"""

import os
from pathlib import Path

from engines import artifact
from engines.artifact import Artefact
from engines.build import build
from engines.llamacpp.fetch import link_or_copy
from engines.llamacpp.recipe import LlamaCppRecipe

ROOT = Path(__file__).parents[2]
SMALL = LlamaCppRecipe(source="smollm2-135m-instruct", quantization="q4_0")
LARGE = LlamaCppRecipe(source="smollm2-135m-instruct", experts=8, experts_used=2)


def folder() -> Path:
    """Where the weights lie: $TURNOUT_TEST_DATA, or .turnout-test in the checkout."""
    return Path(os.environ.get("TURNOUT_TEST_DATA") or ROOT / ".turnout-test").absolute()


def test_data() -> Path:
    """The data folder, with both models of the main job in it; fetched and built at first use (15 s, 640 MB)."""
    small()
    large()
    return folder()


def small() -> Artefact:
    return _built(SMALL)


def large() -> Artefact:
    return _built(LARGE)


def link_into(data: Path) -> Path:
    """Give another data folder the same weights and artefacts, without their space; it returns that folder."""
    shared = test_data()
    for part in ("sources", "artefacts"):
        for source in sorted((shared / part).rglob("*.*")):
            if source.is_file() and source.suffix != ".lock":
                target = data / part / source.relative_to(shared / part)
                target.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(source, target)
    assert artifact.find(data / "artefacts", SMALL.digest) is not None
    return data


def _built(recipe: LlamaCppRecipe) -> Artefact:
    data = folder()
    log = data / "logs" / f"{recipe.digest}.log"
    return build(recipe, data, on_progress=lambda _share, _text: None, cancelled=lambda: False, log=log)
