"""A chat's messages without what carries no meaning: white space, minified JSON of tools, blocks that came before.

Never touched: system and developer text, tool schemas, answers of the model, fenced code, what is not text, and the
last paragraph of every user turn, which is where the question stands. (Of every one, not of the last only: a turn must
not change when another follows it.)

A message's new form depends on it and on those before it, never on what follows, so what was sent once comes out the
same the next time, and the engine's cache of it stays good. All rules take time linear in the text.
"""

import re
from collections.abc import Callable

import msgspec

from gateway.serve.body import Body
from gateway.serve.compress.fences import pieces
from gateway.serve.compress.minify import minified
from gateway.serve.compress.repeats import SHORTEST, Repeats
from gateway.serve.compress.whitespace import tidied

# What a request may cost the event loop; beyond it text is sent as it is.
MOST_BYTES = 500_000  # of messages looked at, from the first one on: about 5 ms of work
MOST_LINES = 20_000  # of one text
MOST_MESSAGES = 5_000  # about 10 ms of work however short they are

TOOLS = (b'"tool"', b'"function"')
USER = b'"user"'
# How loose white space looks inside a JSON string. \u00xx may be any of it.
LOOSE = (b" \\n", b"\\t\\n", b"\\r\\n", b"\\n\\n\\n\\n", b"\\u00")


class Removed(msgspec.Struct, frozen=True):
    """Bytes of text that each rule took away."""

    json: int = 0
    whitespace: int = 0
    repeats: int = 0


class Lossless(msgspec.Struct, frozen=True):
    """`messages`: what to send in place of the field (JSON); None: send the field as it is, and `reason` says why."""

    messages: bytes | None
    removed: Removed = Removed()
    reason: str = ""


NOTHING = Lossless(None, reason="nothing to remove")


class _Message(msgspec.Struct, frozen=True):
    role: msgspec.Raw = msgspec.Raw(b"")
    content: msgspec.Raw = msgspec.Raw(b"")


class _Part(msgspec.Struct, frozen=True):
    type: msgspec.Raw = msgspec.Raw(b"")
    text: msgspec.Raw = msgspec.Raw(b"")


_list: Callable[[bytes | msgspec.Raw], list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw]).decode
_open: Callable[[bytes], dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_message: Callable[[msgspec.Raw], _Message] = msgspec.json.Decoder(_Message).decode
_part: Callable[[msgspec.Raw], _Part] = msgspec.json.Decoder(_Part).decode
_text: Callable[[msgspec.Raw], str] = msgspec.json.Decoder(str).decode
_between = re.compile(rb"[\s,]*").match


def lossless(body: Body) -> bytes | None:
    """The messages to send, or None where nothing is gained."""
    return examine(body).messages


def examine(body: Body) -> Lossless:
    """The same, with what was removed, or why nothing was. Never raises: a surprise means that nothing is done."""
    if body.operation != "chat":
        return Lossless(None, reason="not a chat")
    raw = bytes(body.fields["messages"])
    if not _may_gain(raw):
        return NOTHING
    if raw.count(b'"role"') > MOST_MESSAGES:
        return Lossless(None, reason=f"more than {MOST_MESSAGES} messages")
    try:
        return _Compression(raw).run()
    except Exception as error:  # noqa: BLE001  whatever it was, the request can be sent as it is
        return Lossless(None, reason=f"not understood: {type(error).__name__}")


def _may_gain(raw: bytes) -> bool:
    """False only where no rule can apply to any of these bytes, so that a longer conversation begins the same."""
    return len(raw) >= 2 * SHORTEST or any(role in raw for role in TOOLS) or _may_be_loose(raw)


def _may_be_loose(raw: bytes) -> bool:
    return any(mark in raw for mark in LOOSE)


class _Compression:
    """One conversation, read from its first message to its last."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._repeats = Repeats()
        self._json = self._whitespace = self._blocks = 0

    def run(self) -> Lossless:
        out = [b"["]
        edge = 1
        for message in _list(self._raw):
            found = _between(self._raw, edge)
            start = found.end() if found else edge
            end = start + len(memoryview(message))
            out.append(self._raw[edge:start])
            new = None if end > MOST_BYTES else self._message(message)
            out.append(self._raw[start:end] if new is None else new)
            edge = end
        if not (self._json or self._whitespace or self._blocks):
            return NOTHING
        out.append(self._raw[edge:])
        return Lossless(b"".join(out), Removed(self._json, self._whitespace, self._blocks))

    def _message(self, raw: msgspec.Raw) -> bytes | None:
        """The message with new content; None: it stays as it is."""
        if memoryview(raw)[0] != ord("{"):
            return None
        message = _message(raw)
        role = bytes(message.role)
        if role in TOOLS:
            new = self._content(message.content, self._tool)
        elif role == USER and (len(memoryview(raw)) >= SHORTEST or _may_be_loose(bytes(raw))):
            new = self._content(message.content, self._user)
        else:
            return None
        return None if new is None else _with(raw, content=new)

    def _content(self, content: msgspec.Raw, rule: Callable[[str], str]) -> msgspec.Raw | None:
        match bytes(memoryview(content)[:1]):
            case b'"':
                return _changed(content, rule)
            case b"[":
                parts = _list(content)
                new = [self._content_part(part, rule) for part in parts]
                if all(part is None for part in new):
                    return None
                kept = [bytes(old) if part is None else part for old, part in zip(parts, new, strict=True)]
                return msgspec.Raw(b"[" + b",".join(kept) + b"]")
            case _:
                return None

    def _content_part(self, raw: msgspec.Raw, rule: Callable[[str], str]) -> bytes | None:
        if memoryview(raw)[0] != ord("{"):
            return None
        part = _part(raw)
        if bytes(part.type) != b'"text"' or bytes(memoryview(part.text)[:1]) != b'"':
            return None
        new = _changed(part.text, rule)
        return None if new is None else _with(raw, text=new)

    def _tool(self, text: str) -> str:
        document = minified(text)
        if document is None:
            return self._prose(text)
        self._json += _size(text) - _size(document)
        return document

    def _user(self, text: str) -> str:
        """All but the last paragraph."""
        written = text.rstrip()
        edge = written.rfind("\n\n") + 2
        if "\r" in written:
            edge = max(edge, written.rfind("\n\r\n") + 3)
        if edge < 3:  # noqa: PLR2004  neither was found: one paragraph
            return text
        return self._prose(text[:edge]) + text[edge:]

    def _prose(self, text: str) -> str:
        """White space and blocks that came before, outside fenced code."""
        if len(text) > MOST_LINES and text.count("\n") > MOST_LINES:
            return text
        new: list[str] = []
        for piece in pieces(text):
            if piece.fenced:
                new.append(piece.text)
                continue
            tidy = tidied(piece.text)
            short = self._repeats.without(tidy)
            if short is not piece.text:
                self._whitespace += _size(piece.text) - _size(tidy)
                self._blocks += _size(tidy) - _size(short)
            new.append(short)
        return "".join(new)


def _changed(value: msgspec.Raw, rule: Callable[[str], str]) -> msgspec.Raw | None:
    """A JSON string after the rule; None: the same."""
    text = _text(value)
    new = rule(text)
    return None if new == text else msgspec.Raw(msgspec.json.encode(new))


def _with(raw: msgspec.Raw, **changes: msgspec.Raw) -> bytes:
    return msgspec.json.encode({**_open(bytes(raw)), **changes})


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
