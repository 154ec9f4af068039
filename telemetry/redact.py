"""What may be written down: a text or a field with its secrets and prompt text taken out."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

HIDDEN = "[hidden]"

# Fields that are never written, whatever is in them.
_SECRET = re.compile(
    r"authorization|api[-_]?key|password|passwd|secret|cookie|credential|bearer|^key$|^token$", re.IGNORECASE
)
_TEXT = frozenset({"prompt", "messages", "content", "body", "input", "completion", "text", "raw", "choices", "delta"})

# Secrets inside a text: a header or a field with its value in any quoting, a bearer token, a key of the usual shape.
_NAMED = re.compile(
    r"""((?:authorization|api[-_]?key|password|secret|cookie)['"]?\s*[:=,]\s*b?['"]?)"""
    r"""(?:[A-Za-z]+\s+)?[^\s'",)}\]]+""",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"""\b(bearer|basic)\s+[^\s'",)}\]]+""", re.IGNORECASE)
_KEY = re.compile(r"\b(?:sk|tk|pk|hf|turnout)[-_][A-Za-z0-9_-]{8,}")


def hidden(text: str) -> str:
    """The text with everything in it that looks like a credential replaced."""
    text = _NAMED.sub(rf"\1{HIDDEN}", text)
    text = _SCHEME.sub(rf"\1 {HIDDEN}", text)
    return _KEY.sub(HIDDEN, text)


def safe(name: str, value: object) -> Any:
    """A field's value as it may be written: secrets, prompt text and raw bytes hidden, at any depth."""
    if _SECRET.search(name) or name.lower() in _TEXT or isinstance(value, (bytes, bytearray, memoryview)):
        return HIDDEN
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        fields = cast("Mapping[object, object]", value)
        return {str(key): safe(str(key), below) for key, below in fields.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [safe("", below) for below in cast("Iterable[object]", value)]
    return hidden(str(value))
