"""Settings from their three places: the command's built-in tree (if it has one), the TOML file, the environment.

The later wins (`TURNOUT__GATEWAY__PORT=9000` is `gateway.port`). Tables are merged key by key, but for a recipe, which
is replaced whole: half of one and half of another is a third that nobody meant.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from gateway.settings import shape
from gateway.settings.check import check, enabled
from gateway.settings.errors import SettingsError
from gateway.settings.tree import Settings

SOURCES: Final = ("url", "gguf", "recipe")
# What a built-in pool says of its own model, and what does not hold of another one.
OF_ITS_MODEL: Final = frozenset({"recipe", "context", "threads", "prefill_rate", "decode_rate", "cold_start"})

Tree = dict[str, Any]


def load(
    path: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    builtin: Mapping[str, Any] | None = None,
    prefix: str = "TURNOUT",
) -> Settings:
    """Merge the trees, in the order the module says. Raises SettingsError."""
    file = {} if path is None else _read(path)
    variables = _variables(environ, prefix)
    tree: Tree = {}
    _merge(tree, _without_other_models(builtin or {}, _together({}, file, variables)))
    tree = _together(tree, file, variables)
    for misfit in shape.misfits(tree):
        raise SettingsError(_told(misfit, path, variables))
    settings = enabled(msgspec.convert(tree, Settings, strict=False))
    try:
        check(settings)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}" if path else str(error)) from error
    return settings


def _told(misfit: shape.Misfit, file: Path | None, variables: Mapping[tuple[str, ...], tuple[str, str]]) -> str:
    """The misfit with where it comes from: a variable of the environment, or the file."""
    for keys, (name, _) in variables.items():
        if keys[: len(misfit.path)] == misfit.path or misfit.path[: len(keys)] == keys:
            return f"{name}: {shape.dotted(misfit.path)}: {misfit.words}"
    return f"{f'{file}: ' if file else ''}{shape.dotted(misfit.path)}: {misfit.words}"


def _variables(environ: Mapping[str, str], prefix: str) -> dict[tuple[str, ...], tuple[str, str]]:
    """What the environment sets: by path, the variable's name and its value."""
    found: dict[tuple[str, ...], tuple[str, str]] = {}
    for name, value in environ.items():
        root, *keys = name.split("__")
        if root == prefix and keys:
            found[tuple(key.lower() for key in keys)] = (name, value)
    return found


def _together(tree: Tree, file: Mapping[str, Any], variables: Mapping[tuple[str, ...], tuple[str, str]]) -> Tree:
    _merge(tree, file)
    for keys, (name, value) in variables.items():
        _put(tree, keys, value, name)
    return tree


def _without_other_models(builtin: Mapping[str, Any], given: Mapping[str, Any]) -> Tree:
    """The built-in tree; where a pool is given another source, what is said there of the built-in model falls away."""
    made: Tree = {}
    _merge(made, builtin)
    users, pools = given.get("pools"), made.get("pools")
    if isinstance(users, Mapping) and isinstance(pools, dict):
        for name, entry in cast("Mapping[str, Any]", users).items():
            own = cast("Tree", pools).get(name)
            if own is not None and isinstance(entry, Mapping) and any(source in entry for source in SOURCES):
                replaced = OF_ITS_MODEL - ({"recipe"} if _only_a_part(cast("Tree", entry)) else set())
                pools[name] = {field: value for field, value in own.items() if field not in replaced}
    return made


def _only_a_part(entry: Mapping[str, Any]) -> bool:
    """Whether single fields of the recipe are set, as the environment may."""
    recipe = entry.get("recipe")
    return isinstance(recipe, Mapping) and "engine" not in recipe and "url" not in entry and "gguf" not in entry


def _read(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error


def _merge(tree: Tree, other: Mapping[str, Any], *, depth: int = 0) -> None:
    for name, value in other.items():
        if isinstance(value, Mapping):
            if not isinstance(tree.get(name), dict) or (name == "recipe" and depth == 2):  # noqa: PLR2004  pools.NAME.recipe
                tree[name] = {}
            _merge(tree[name], cast("Mapping[str, Any]", value), depth=depth + 1)
        else:
            tree[name] = value


def _put(tree: Tree, keys: tuple[str, ...], value: str, name: str) -> None:
    *parents, last = keys
    for key in parents:
        below: Any = tree.setdefault(key, {})
        if not isinstance(below, dict):
            raise SettingsError(f"{name}: {key} is not a table.")
        tree = cast("Tree", below)
    tree[last] = value
