"""What a tree must look like to become Settings, and the words for what does not fit: full path, what was meant."""

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin

import msgspec

from gateway.settings.errors import meant
from gateway.settings.tree import Settings

Path = tuple[str | int, ...]

_WORDS: Final[Mapping[object, str]] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a table",
}
_SECRET: Final = frozenset({"key", "token"})


class Misfit(msgspec.Struct, frozen=True):
    """A place in the tree and what is wrong with it."""

    path: Path
    words: str


def misfits(tree: Mapping[str, Any]) -> Iterator[Misfit]:
    """Everything in the tree that no setting can be made of, in the tree's order."""
    return _table(tree, Settings, ())


def dotted(path: Path) -> str:
    """`pools.small.gguf`, `keys[0].name`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _table(value: object, kind: type[msgspec.Struct], path: Path) -> Iterator[Misfit]:
    if not isinstance(value, Mapping):
        yield Misfit(path, "a table is needed here")
        return
    tree = cast("Mapping[str, Any]", value)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, below in tree.items():
        if name in fields:
            yield from _value(below, fields[name].type, (*path, name))
        else:
            yield Misfit((*path, name), f"unknown{meant(name, fields)}")
    for name, field in fields.items():
        if field.required and name not in tree:
            yield Misfit((*path, name), "is missing")


def _value(value: object, kind: Any, path: Path) -> Iterator[Misfit]:
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from _table(value, kind, path)
    elif origin is dict and _is_struct(inner[1]):
        if not isinstance(value, Mapping):
            yield Misfit(path, f"tables are needed here: [{dotted(path)}.NAME]")
            return
        for name, below in cast("Mapping[str, Any]", value).items():
            yield from _table(below, inner[1], (*path, name))
    elif origin is tuple and _is_struct(inner[0]):
        if not isinstance(value, Sequence) or isinstance(value, str):
            yield Misfit(path, f"a list of tables is needed here: [[{dotted(path)}]]")
            return
        for index, below in enumerate(cast("Sequence[object]", value)):
            yield from _table(below, inner[0], (*path, index))
    else:
        yield from _leaf(value, kind, path)


def _leaf(value: object, kind: Any, path: Path) -> Iterator[Misfit]:
    try:
        msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        shown = "" if path[-1] in _SECRET else f", not {value!r}"
        yield Misfit(path, f"{expected(kind)} is needed{shown}")


def expected(kind: Any) -> str:
    """The words for a type: `a whole number from 0 to 65535`, `openai, vllm or tgi`."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{expected(inner[0])}{''.join(_bounds(one) for one in inner[1:])}"
    if origin is Literal:
        return _either([str(one) for one in inner])
    if origin in (Union, UnionType):
        return _either([expected(one) for one in inner if one is not NoneType])
    if origin is tuple:
        return "a list of texts"
    return _WORDS.get(origin or kind, "something else")


def _bounds(meta: msgspec.Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge} to {meta.le}"
    if meta.ge is not None:
        return f" of at least {meta.ge}"
    return "" if meta.gt is None else f" over {meta.gt}"


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
