"""Watching a server-sent event stream go by as bytes: what passes, what is ours alone, and what it says."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from backends.errors import Interrupted
from backends.usage import read_usage
from telemetry.usage import Meter

EVENT_LIMIT: Final = 16 * 1024 * 1024  # bytes of one event that has not ended yet
DONE: Final = b"[DONE]"

# Lines end with LF, CR or CRLF and nothing else; a blank line ends the event. A CRLF is never taken for two ends.
_BOUNDARY: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE: Final = re.compile(rb"\r\n|\n|\r")
_ENDS: Final = (b"\n\n", b"\r\n\r\n")
_COLON: Final = 0x3A
_DROPPED, _PASSED = 1, 2
_OTHER_MARKS: Final = (DONE, b'"error"', b"prompt_progress", b'"finish_reason":"', b'"finish_reason": "')
_MARKS: Final = (b'"usage"', *_OTHER_MARKS)
_BOM: Final = b"\xef\xbb\xbf"
_LAST: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "message_stop"})


class _Delta(msgspec.Struct):
    content: object = None
    reasoning_content: object = None
    reasoning: object = None
    refusal: object = None
    tool_calls: object = None
    function_call: object = None


class _Choice(msgspec.Struct):
    index: object = 0
    delta: _Delta | None = None
    text: object = None
    finish_reason: object = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: object = None
    prompt_progress: object = None
    error: object = None
    kind: object = msgspec.field(default=None, name="object")
    type: object = None


_chunk = msgspec.json.Decoder(_Chunk)


def whole_events(block: bytes, start: int = 0) -> int:
    """Where the last whole event of `block` ends; 0 if none does. `start`: how far it is known that none ends."""
    if b"\r" not in block:
        return block.rfind(b"\n\n", start) + 2 if block.find(b"\n\n", start) >= 0 else 0
    end = 0
    for match in _BOUNDARY.finditer(block, start):
        end = match.end()
    return end


def split_events(block: bytes) -> Iterator[bytes]:
    """The whole events of `block`, one by one, each with its blank line; blank lines left over come last."""
    start = 0
    for match in _BOUNDARY.finditer(block):
        yield block[start : match.end()]
        start = match.end()
    if start < len(block):
        yield block[start:]


def _event_end(block: bytes, start: int) -> int:
    """Where the event that begins at `start` ends."""
    if b"\r" not in block:
        found = block.find(b"\n\n", start)
        return found + 2 if found >= 0 else len(block)
    match = _BOUNDARY.search(block, start)
    return match.end() if match else len(block)


def _quiet_end(block: bytes, start: int) -> int:
    """Where the last event ends before the first one from `start` on that says more than a token does."""
    found = [at for mark in _MARKS if (at := block.find(mark, start)) >= 0]
    if not found:
        return len(block)
    return max(start, whole_events(block[: min(found)], start))


def _blank_start(event: bytes) -> bytes:
    """Blank lines before an event belong to nobody: they pass even where the event does not."""
    return event[: len(event) - len(event.lstrip(b"\r\n"))]


def data_of(event: bytes) -> bytes | None:
    """What the `data:` lines of one event say, joined by LF; None if it has none (a comment, a bare id)."""
    found = [
        line[6:] if line.startswith(b"data: ") else line[5:]
        for line in _LINE.split(event.removeprefix(_BOM))
        if line.startswith(b"data:")
    ]
    if not found:
        return None
    return found[0] if len(found) == 1 else b"\n".join(found)


class Sieve:
    """Fed with what comes from upstream, returns what the client gets, and tells the meter.

    Every event is parsed until the first token; from then on only those that hold `"usage"`, `prompt_progress`,
    `"error"`, `[DONE]` or a finish reason. What is not stripped passes byte for byte, malformed events included; only
    whole events are passed on. `choices`: how many a complete answer finishes (OpenAI's `n`).
    """

    __slots__ = (
        "_choices",
        "_finished",
        "_flowing",
        "_last",
        "_loose",
        "_meter",
        "_pending",
        "_searched",
        "_strip_progress",
        "_strip_usage",
        "_token",
        "done",
        "error",
        "malformed",
        "refused",
        "spoken",
    )

    def __init__(
        self, meter: Meter, *, strip_usage: bool = False, strip_progress: bool = False, choices: int = 1
    ) -> None:
        self._meter = meter
        self._strip_usage = strip_usage
        self._strip_progress = strip_progress
        self._choices = choices
        self._finished: set[object] = set()
        self._flowing = False  # the first token has been seen
        self._token = False  # the chunk being looked at holds one
        self._pending = b""
        self._searched = 0  # bytes of _pending in which no event ends
        self._loose = 0  # what became of the last event if it ended with a CR: an LF may still belong to it
        self._last = b""
        self.done = False  # [DONE] came: nothing follows
        self.error: bytes | None = None  # the data of the first error event
        self.refused: bytes | None = None  # the same, where no other event with data had come before
        self.malformed = 0  # events passed on that are not JSON
        self.spoken = False  # an event with data has passed: not only comments

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes, cut anywhere; return whole events for the client, or nothing. Raises Interrupted."""
        if self._flowing and not self._pending and not self._loose and chunk.endswith(_ENDS) and not _marked(chunk):
            self._last = chunk
            self._meter.chunk(len(chunk), token=chunk[0] != _COLON)
            return chunk
        self._token = False
        out = self._cut(chunk)
        self._meter.chunk(len(chunk), token=self._token)
        return out

    def end(self) -> bytes:
        """The stream has ended: what is still to be passed on.

        An event that lacks only its blank line is completed; one that was broken off is dropped, because half of it
        would spoil the line that tells the client so.
        """
        pending, self._pending = self._pending, b""
        if not pending.strip(b"\r\n"):
            return pending
        data = data_of(pending)
        if data is not None and data.strip() != DONE and not _is_json(data):
            return b""
        return self._sift(pending.rstrip(b"\r\n") + b"\n\n")

    def complete(self) -> bool:
        """At the end: whether a terminal frame came ([DONE], every choice's finish reason, a last response event)."""
        if not self._meter.finished and self._last:
            last, self._last = self._last, b""
            for event in split_events(last):  # a finish reason written in a way that the fast path does not know
                self._keeps(event)
        return self._meter.finished

    def _cut(self, chunk: bytes) -> bytes:
        """Separate whole events from the rest, which waits for its end."""
        before = b""
        if self._loose:
            if chunk.startswith(b"\n"):  # the second half of that CRLF shares the fate of its event
                before = b"\n" if self._loose == _PASSED else b""
                chunk = chunk[1:]
            self._loose = 0
        block = self._pending + chunk if self._pending else chunk
        end = whole_events(block, self._searched)
        self._pending = block[end:]
        self._searched = max(0, len(self._pending) - 3)
        if len(self._pending) > EVENT_LIMIT:
            raise Interrupted(f"an event of more than {EVENT_LIMIT} bytes")
        if not end:
            return before
        out = self._sift(block[:end])
        if self._pending:  # what follows that event is known already
            self._loose = 0
        return before + out

    def _sift(self, block: bytes) -> bytes:
        """Whole events in, those for the client out: one by one until the first token, and from the first mark on."""
        out: list[bytes] = []
        at = 0
        while at < len(block) and not self._flowing:
            at = self._one(block, at, out)
        if at < len(block):
            end = _quiet_end(block, at)
            if end > at:
                self._last = block[at:end]
                self._token = self._token or self._last[0] != _COLON
                self._loose = _PASSED if end == len(block) and block.endswith(b"\r") else 0
                out.append(self._last)
            at = end
        while at < len(block):
            at = self._one(block, at, out)
        return out[0] if len(out) == 1 else b"".join(out)

    def _one(self, block: bytes, start: int, out: list[bytes]) -> int:
        """Pass or drop the event that begins at `start`; returns where it ends."""
        end = _event_end(block, start)
        event = block[start:end]
        if self._flowing and not _marked(event):
            keep = True
            self._token = self._token or event[0] != _COLON
        else:
            keep = self._keeps(event)
        self._loose = (_PASSED if keep else _DROPPED) if event.endswith(b"\r") else 0
        out.append(event if keep else _blank_start(event))
        return end

    def _keeps(self, event: bytes) -> bool:
        """Look into one event; False: it is ours alone."""
        data = data_of(event)
        if data is None:
            if event.startswith(b"error:"):  # llama.cpp's older way
                self._fault(event[6:].strip())
                self.spoken = True
            return True
        keep = True
        if data.strip() == DONE:
            self.done = self._meter.finished = True
        else:
            try:
                chunk = _chunk.decode(data)
            except (msgspec.MsgspecError, RecursionError):
                self.malformed += 1
            else:
                keep = self._read(chunk, data, event)
        self.spoken = self.spoken or keep
        return keep

    def _read(self, chunk: _Chunk, data: bytes, event: bytes) -> bool:
        if chunk.error or chunk.kind == "error" or event.startswith(b"event: error"):
            self._fault(data)
            return True
        meter = self._meter
        meter.usage = read_usage(chunk.usage, meter.usage)
        choices = chunk.choices or []
        token = any(map(_has_token, choices))
        if token:
            self._token = self._flowing = True
        self._finished.update(str(choice.index) for choice in choices if choice.finish_reason)
        if len(self._finished) >= self._choices or chunk.type in _LAST:
            meter.finished = True
        if chunk.prompt_progress is not None and self._strip_progress and not token:
            return False
        return not (self._strip_usage and not choices and chunk.usage)

    def _fault(self, data: bytes) -> None:
        if self.error is None:
            self.error = data
            self.refused = None if self.spoken else data


def _marked(block: bytes) -> bool:
    """Whether an event in here may say more than a token does. Cheap: a handful of substring searches."""
    if b'"usage"' in block and block.count(b'"usage"') != block.count(b'"usage":null') + block.count(b'"usage": null'):
        return True
    for mark in _OTHER_MARKS:  # noqa: SIM110  a generator would cost more than the searches
        if mark in block:
            return True
    return False


def _has_token(choice: _Choice) -> bool:
    """A role alone, or an empty string, is not a token."""
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(
        delta.content
        or delta.reasoning_content
        or delta.reasoning
        or delta.tool_calls
        or delta.function_call
        or delta.refusal
        or choice.text
    )


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True
