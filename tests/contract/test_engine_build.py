"""From a recipe in a row to an artefact in a row, with the engines' own code."""

import pytest

from engines import registry
from engines.artifact import Artefact, Manifest, artefacts_folder
from engines.build import publish
from engines.errors import BuildCancelled, RecipeError
from gateway.control.engine_build import engine_build, row

RECIPE = registry.decode_recipe({"engine": "llamacpp", "source": "smollm2-135m-instruct"})


def on_disk(data) -> Artefact:
    """What a finished build leaves."""
    work = data / "staging" / "work"
    work.mkdir(parents=True)
    (work / "model.gguf").write_bytes(b"weights")
    manifest = Manifest(
        digest=RECIPE.digest,
        recipe=registry.encode_recipe(RECIPE),
        file="model.gguf",
        bytes=7,
        sha256="0" * 64,
        created="2026-01-02T03:04:05+00:00",
        seconds=1.0,
        tools={"gguf": "1"},
    )
    return publish(manifest, work, artefacts_folder(data))


def work(data, recipe, *, cancelled=lambda: False):
    return engine_build(data)(recipe, on_progress=lambda *_: None, cancelled=cancelled, log=data / "logs" / "build.log")


def test_what_is_there_is_found(tmp_path):
    made = on_disk(tmp_path)
    found = work(tmp_path, registry.encode_recipe(RECIPE))
    assert found == row(made)
    assert (found.digest, found.engine, found.file) == (RECIPE.digest, "llamacpp", str(made.path))
    assert (found.bytes, found.manifest["tools"], found.created_at) == (7, {"gguf": "1"}, 1767323045.0)


def test_a_recipe_that_cannot_be_read(tmp_path):
    with pytest.raises(RecipeError, match="pencil"):
        work(tmp_path, {"engine": "pencil", "source": "x"})


def test_the_wish_to_cancel_reaches_the_engines(tmp_path):
    with pytest.raises(BuildCancelled):
        work(tmp_path, registry.encode_recipe(RECIPE), cancelled=lambda: True)
    assert not artefacts_folder(tmp_path).exists()
