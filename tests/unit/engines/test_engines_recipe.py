"""Recipes as data: the digest, the way through JSON, and what is refused."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import registry
from engines.errors import RecipeError
from engines.llamacpp.recipe import LlamaCppRecipe
from engines.recipe import ServeOptions

SMALL = {"engine": "llamacpp", "source": "smollm2-135m-instruct", "quantization": "q4_0"}


@st.composite
def recipes(draw):
    experts = draw(st.none() | st.integers(2, 256))
    return LlamaCppRecipe(
        source=draw(st.text(min_size=1)),
        quantization=draw(st.sampled_from(["as is", "q4_0", "q4_1", "q8_0", "f16"])),
        experts=experts,
        experts_used=None if experts is None else draw(st.none() | st.integers(1, experts)),
        seed=draw(st.integers(0, 2**32)),
    )


@settings(deadline=None)
@given(recipes())
def test_a_recipe_survives_settings_and_json(recipe):
    tree = registry.encode_recipe(recipe)
    assert registry.decode_recipe(tree) == recipe
    again = registry.decode_recipe(msgspec.json.encode(tree))
    assert again == recipe
    assert again.digest == recipe.digest


@settings(deadline=None)
@given(recipes(), recipes())
def test_different_recipes_have_different_digests(one, other):
    assert (one.digest == other.digest) == (one == other)


def test_digests_do_not_change_between_releases():
    # These name artefacts on people's disks: a change here throws their builds away.
    assert registry.decode_recipe(SMALL).digest == "e41ce7c62b42b39d"
    large = {"engine": "llamacpp", "source": "smollm2-135m-instruct", "experts": 8, "experts_used": 2}
    assert registry.decode_recipe(large).digest == "edf4100dd283671c"


def test_what_is_the_default_does_not_count():
    assert registry.decode_recipe(SMALL | {"seed": 0, "experts": None}).digest == registry.decode_recipe(SMALL).digest


def test_experts_used_is_two_unless_said():
    assert LlamaCppRecipe(source="x.gguf", experts=4).used == 2
    assert LlamaCppRecipe(source="x.gguf", experts=4, experts_used=3).used == 3
    assert LlamaCppRecipe(source="x.gguf").used == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": "tensorflow"}, r"'tensorflow' - at `\$\.engine`; known: llamacpp"),
        ({"engine": None}, r"None - at `\$\.engine`"),
        ({"engine": ["llamacpp"]}, r"at `\$\.engine`"),
        ({"quantization": "q3_k"}, r"'q3_k' - at `\$\.quantization`"),
        ({"quantisation": "q4_0"}, "unknown field `quantisation`"),
        ({"source": 7}, r"Expected `str`, got `int` - at `\$\.source`"),
        ({"experts": 1}, r"at `\$\.experts`"),
        ({"experts": 4, "experts_used": 5}, "experts_used 5 is more than experts 4"),
        ({"experts_used": 1}, "experts_used needs experts"),
    ],
)
def test_a_wrong_recipe_is_refused_with_the_path(change, words):
    with pytest.raises(RecipeError, match=words):
        registry.decode_recipe(SMALL | change)


def test_a_missing_source_is_named():
    with pytest.raises(RecipeError, match="missing required field `source`"):
        registry.decode_recipe({"engine": "llamacpp"})


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'"llamacpp"'])
def test_bytes_that_are_no_recipe_are_refused(data):
    with pytest.raises(RecipeError):
        registry.decode_recipe(data)


def test_the_tag_is_the_engine():
    assert registry.engine_of(registry.decode_recipe(SMALL)) == "llamacpp"


def test_an_unknown_engine_cannot_serve():
    with pytest.raises(RecipeError, match="'vllm'; known: llamacpp"):
        registry.serve("vllm", ServeOptions(name="x", model="/m.gguf"))
