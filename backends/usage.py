"""Reading what an engine says a request cost, wherever and however it says it."""

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from telemetry.usage import Usage

_WHOLE = 256 * 1024  # bytes of a document that are parsed to find its usage
_EDGE = 4096  # of a larger one only this much at either end is looked at
_MOST = 1_000_000_000  # tokens: a count beyond any context is a fault of the engine's, and no database column holds it
_KEY = b'"usage"'  # cannot stand inside a JSON string: there the quotes are escaped


class _Answer(msgspec.Struct):
    usage: object = None


_answer = msgspec.json.Decoder(_Answer)


def read_usage(value: object, before: Usage | None = None) -> Usage | None:
    """OpenAI's usage object as ours; `before` is kept where `value` says nothing.

    Engines that report with each chunk may name the cached tokens only once, so those outlive a later report without.
    """
    if not isinstance(value, dict) or not value:
        return before
    fields = cast("Mapping[str, object]", value)
    prompt, completion = _count(fields.get("prompt_tokens")), _count(fields.get("completion_tokens"))
    if prompt is None and completion is None:
        return before
    details = fields.get("prompt_tokens_details")
    cached = _count(cast("Mapping[str, object]", details).get("cached_tokens")) if isinstance(details, dict) else None
    if cached is None:
        cached = _count(fields.get("prompt_cache_hit_tokens"))  # DeepSeek's name
    if cached is None and before is not None:
        cached = before.cached_tokens
    return Usage(prompt or 0, completion or 0, cached)


def usage_of_document(pieces: Sequence[bytes]) -> Usage | None:
    """The usage of a whole JSON answer. Of a large one (embeddings) only the ends are searched."""
    document = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if len(document) <= _WHOLE:
        try:
            return read_usage(_answer.decode(document).usage)
        except (msgspec.MsgspecError, RecursionError):
            return None
    return _usage_in(document[-_EDGE:]) or _usage_in(document[:_EDGE])


def _usage_in(text: bytes) -> Usage | None:
    start = text.rfind(_KEY)
    start = text.find(b"{", start) if start >= 0 else -1
    if start < 0:
        return None
    depth = 0
    for end in range(start, len(text)):  # a usage object holds numbers: no string hides a brace
        depth += {0x7B: 1, 0x7D: -1}.get(text[end], 0)
        if depth == 0:
            try:
                return read_usage(msgspec.json.decode(text[start : end + 1]))
            except (msgspec.MsgspecError, RecursionError):
                return None
    return None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _MOST else None
