"""What a model server's own error means, whatever shape it came in."""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final, cast

import msgspec

from backends.errors import BackendError, Overloaded, Refused

RETRY_AFTER_LIMIT: Final = 60.0  # seconds: a server that says a day would be out for a day
_BUSY: Final = (429, 503)
_MESSAGE_LIMIT: Final = 2000  # characters of a server's words that are passed on
_BAD_GATEWAY: Final = 502

CONTEXT_EXCEEDED: Final = "context_length_exceeded"

# Sources: llama.cpp tools/server (exceed_context_size_error), vLLM's renderer, TGI router/src/validation.rs,
# TensorRT-LLM's executor checks. Only tried on errors that blame the request.
_TOO_LONG: Final = re.compile(
    r"maximum context length|context size|context length|context window|exceed_context_size"
    r"|inputs`? (tokens|must have less than)|tokens \+ `?max_new_tokens"
    r"|prompt length .*exceed|max_seq_len|max_num_tokens|longer than the maximum model length|prompt is too long",
    re.IGNORECASE,
)
_CONTEXT_KINDS: Final = frozenset({"exceed_context_size_error", CONTEXT_EXCEEDED})
_REQUEST_KINDS: Final = frozenset({"validation", "template_error", "missing_template_variable", "tool_error"})  # TGI's


class Words(msgspec.Struct, frozen=True):
    """What a server said of an error. None: it did not say."""

    message: str
    type: str | None = None
    code: str | None = None
    param: str | None = None
    status: int | None = None  # named inside the body, as in an error event of a stream


def refusal(
    status: int, body: bytes, headers: Mapping[str, str], *, server: str, now: float, busy: bool = True
) -> BackendError:
    """The error to raise for an answer of 4xx or 5xx (or an unwanted 3xx). `now`: Unix time, for HTTP dates.

    A 401 is about the gateway's own key, so it is not told as one: the client's key is fine.
    """
    words = read_words(body) or Words(f"The model server answered with status {status}.")
    if busy and status in _BUSY:
        after = retry_after(headers.get("retry-after"), now=now)
        return Overloaded(f"{server}: {words.message}", status=status, retry_after=after)
    if status < 400:  # noqa: PLR2004
        return Refused(f"The model server answered with status {status}.", status=_BAD_GATEWAY, type="server_error")
    if status in (401, 407):
        message = f"The model server did not accept the gateway's credentials: {words.message}"
        return Refused(message, status=_BAD_GATEWAY, type="server_error", code="upstream_unauthorized")
    return _refused(status, words)


def refusal_in_stream(data: bytes, *, server: str) -> BackendError:
    """The error to raise for an error event that came in place of an answer, inside a 200."""
    words = read_words(data) or Words("The model server broke off with an error.")
    status = words.status or (500 if words.type not in _REQUEST_KINDS else 422)
    if status in _BUSY:
        return Overloaded(f"{server}: {words.message}", status=status)
    return _refused(status, words)


def _refused(status: int, words: Words) -> Refused:
    kind, code = words.type, words.code
    if kind in _REQUEST_KINDS:
        kind, code = "invalid_request_error", code or kind
    blames_request = 400 <= status < 500  # noqa: PLR2004
    if kind in _CONTEXT_KINDS or code in _CONTEXT_KINDS or (blames_request and _TOO_LONG.search(words.message)):
        return Refused(
            words.message, status=400, type="invalid_request_error", code=CONTEXT_EXCEEDED, param=words.param
        )
    return Refused(words.message, status=status, type=kind, code=code, param=words.param)


def read_words(body: bytes) -> Words | None:
    """Find the message, type, code and param in an error of any known shape; None if there is nothing to read.

    OpenAI, llama.cpp, vLLM: `{"error": {...}}`; TensorRT-LLM: `{"object": "error", ...}` or `{"error": "text"}`; TGI:
    `{"error": "text", "error_type": ...}`; FastAPI: `{"detail": ...}`; others: plain text or HTML.
    """
    text = body.decode("utf-8", "replace").strip()
    try:
        value = cast("object", msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Words(_clean(text)) if _clean(text) else None
    if isinstance(value, dict):
        return _of_object(cast("Mapping[str, object]", value))
    if isinstance(value, str) and value:
        return Words(_clean(value))
    return Words(_clean(text)) if text else None


def _of_object(value: Mapping[str, object]) -> Words | None:
    error = value.get("error")
    if isinstance(error, dict):
        return _of_fields(cast("Mapping[str, object]", error))
    if isinstance(error, str) and error:
        kind = value.get("error_type", value.get("type"))
        return Words(_clean(error), type=kind if isinstance(kind, str) else None, status=_status(value))
    if "detail" in value:
        return _of_detail(value["detail"])
    return _of_fields(value)


def _of_fields(fields: Mapping[str, object]) -> Words | None:
    message = fields.get("message", fields.get("msg"))
    if not isinstance(message, str) or not message:
        return None
    kind, code, param = fields.get("type"), fields.get("code"), fields.get("param")
    return Words(
        _clean(message),
        type=kind if isinstance(kind, str) and kind else None,
        code=code if isinstance(code, str) and code and not code.isdecimal() else None,
        param=param if isinstance(param, str) and param else None,
        status=_status(fields),
    )


def _of_detail(detail: object) -> Words | None:
    """FastAPI: a text, or a list of faults with their places."""
    if isinstance(detail, str):
        return Words(_clean(detail)) if detail else None
    if isinstance(detail, dict):
        return _of_object(cast("Mapping[str, object]", detail))
    faults = (
        [cast("Mapping[str, object]", f) for f in cast("list[object]", detail) if isinstance(f, dict)]
        if isinstance(detail, list)
        else []
    )
    if not faults:
        return None
    places = [_place(fault.get("loc")) for fault in faults]
    told = "; ".join(
        f"{place}: {fault.get('msg')}" if place else str(fault.get("msg"))
        for place, fault in zip(places, faults, strict=True)
    )
    return Words(_clean(told), type="invalid_request_error", param=places[0] or None)


def _place(loc: object) -> str:
    parts = cast("list[object]", loc) if isinstance(loc, list) else []
    return ".".join(str(part) for part in parts if part != "body")


def _status(fields: Mapping[str, object]) -> int | None:
    """Engines put the HTTP status into `code` (vLLM, llama.cpp), `status` or `http_status_code` (TGI)."""
    for name in ("http_status_code", "status_code", "status", "code"):
        value = fields.get(name)
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(number, int) and 400 <= number < 600:  # noqa: PLR2004
            return number
    return None


def _clean(text: str) -> str:
    """One readable line or paragraph: HTML pages of proxies lose their tags."""
    if text.lstrip()[:1] == "<":
        text = re.sub(r"(?is)<(script|style|head)\b.*?</\1>", " ", text)
        text = " ".join(re.sub(r"<[^>]*>", " ", text).split())
    return text.strip()[:_MESSAGE_LIMIT]


def retry_after(text: str | None, *, now: float, limit: float = RETRY_AFTER_LIMIT) -> float | None:
    """Seconds that a Retry-After asks for (a number or an HTTP date), at most `limit`; None if it says nothing."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return None
    if seconds != seconds:  # noqa: PLR0124  NaN
        return None
    return min(max(seconds, 0.0), limit)
