"""The engines that are known, by the tag of their recipes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.errors import RecipeError
from engines.llamacpp import plan as llamacpp
from engines.llamacpp import sources as llamacpp_sources
from engines.llamacpp.recipe import LlamaCppRecipe
from engines.recipe import BuildPlan, Command, ServeOptions

AnyRecipe = LlamaCppRecipe  # a union, once there are more

_SERVE: Final[Mapping[str, Callable[[ServeOptions], Command]]] = {"llamacpp": llamacpp.serve_command}


def engine_of(recipe: AnyRecipe) -> str:
    """The recipe's tag."""
    return str(recipe.__struct_config__.tag)


def decode_recipe(data: Mapping[str, Any] | bytes) -> AnyRecipe:
    """A recipe from settings or JSON. Raises RecipeError that says where the fault is and what may stand there."""
    try:
        tree = msgspec.json.decode(data, type=dict[str, Any]) if isinstance(data, bytes) else dict(data)
        engine = tree.get("engine")
        if not isinstance(engine, str) or engine not in _SERVE:
            raise RecipeError(f"There is no engine {engine!r} - at `$.engine`; known: {', '.join(_SERVE)}.")
        return msgspec.convert(tree, AnyRecipe)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise RecipeError(f"Recipe: {error}") from error


def encode_recipe(recipe: AnyRecipe) -> dict[str, Any]:
    """What decode_recipe takes, with every default written out."""
    return dict(msgspec.to_builtins(recipe))


def plan(recipe: AnyRecipe, staging: Path, sources: Path) -> BuildPlan:
    """What a build would do. Looks at the size of the source and nothing else. Raises SourceError."""
    size = llamacpp_sources.size(recipe.source)
    return llamacpp.build_plan(recipe, staging.absolute(), sources.absolute(), source_bytes=size)


def serve(engine: str, options: ServeOptions) -> Command:
    """How a replica is started. Raises RecipeError for an unknown engine."""
    if engine not in _SERVE:
        raise RecipeError(f"There is no engine {engine!r}; known: {', '.join(_SERVE)}.")
    return _SERVE[engine](options)
