"""A settings tree written as TOML, so that what runs can be read, kept and given to --config."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")


def dumps(tree: Mapping[str, Any]) -> str:
    """TOML text of a tree of tables, arrays, strings, numbers and booleans; None is left out (TOML has no such value).

    Tables inside arrays are written inline, or as `[[name]]` where an array holds nothing but tables.
    """
    return "\n".join(_table(tree, ())).strip() + "\n"


def _table(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    below = {name: value for name, value in tree.items() if value is not None}
    for name, value in below.items():
        if not isinstance(value, Mapping) and not _tables(value):
            yield f"{_key(name)} = {_value(value)}"
    for name, value in below.items():
        here = (*path, name)
        title = ".".join(_key(part) for part in here)
        if isinstance(value, Mapping):
            yield from ("", f"[{title}]", *_table(cast("Mapping[str, Any]", value), here))
        elif _tables(value):
            for entry in value:
                yield from ("", f"[[{title}]]", *_table(entry, here))


def _tables(value: object) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    entries = cast("Sequence[object]", value)
    return bool(entries) and all(isinstance(entry, Mapping) for entry in entries)


def _value(value: Any) -> str:
    match value:
        case str():
            return _string(value)
        case bool():
            return "true" if value else "false"
        case float() if math.isinf(value) or math.isnan(value):
            return str(value)
        case int() | float():
            return repr(value)
        case Mapping():
            below = cast("Mapping[str, Any]", value)
            return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in below.items() if v is not None) + "}"
        case Sequence():
            return "[" + ", ".join(_value(entry) for entry in cast("Sequence[object]", value)) + "]"
        case _:
            raise TypeError(f"TOML has no form for {type(value).__name__}.")


def _key(name: str) -> str:
    return name if _BARE.match(name) else _string(name)


def _string(text: str) -> str:
    """JSON's escapes are TOML's too; only DEL has to be escaped besides."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
