"""The W3C `traceparent` header, level 1: https://www.w3.org/TR/trace-context/."""

import re

import msgspec


class Context(msgspec.Struct, frozen=True):
    """Which trace, which span of it, and whether it is recorded."""

    trace_id: int  # 128 bits, not zero
    span_id: int  # 64 bits, not zero
    sampled: bool


_VERSION_0 = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
# A version we do not know may carry more fields behind the four; what we know of it is read.
_LATER = re.compile(r"(?!ff|00)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-[!-~]*)?", re.ASCII)
_STATE = re.compile(r"[ -~\t]{1,512}", re.ASCII)


def parse(header: str | None) -> Context | None:
    """The context that a caller sent; None where there is none or where it is not as the standard asks."""
    if header is None:
        return None
    found = _VERSION_0.fullmatch(header) or _LATER.fullmatch(header)
    if found is None:
        return None
    trace, span, flags = (int(field, 16) for field in found.groups())
    return Context(trace, span, sampled=bool(flags & 1)) if trace and span else None


def written(context: Context) -> str:
    """The header that names this span as the parent."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-0{int(context.sampled)}"


def state(header: str | None) -> str:
    """A `tracestate` to pass on, as it came; empty where it is too long (over 512) or not printable."""
    return header if header and _STATE.fullmatch(header) else ""
