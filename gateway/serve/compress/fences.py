"""Where the fenced code of a text lies, so that nobody touches it."""

from collections.abc import Iterator

import msgspec

MARKS = ("```", "~~~")
MOST = 1000  # marks in one text; one with more counts as code from end to end
BEFORE_OPENING = " \t>-*+0123456789.)"  # what may stand before a fence: indent, quote, list item
BEFORE_CLOSING = " \t>"


class Piece(msgspec.Struct, frozen=True):
    """A run of whole lines. The pieces of a text, joined, are the text."""

    text: str
    fenced: bool


class _Fence(msgspec.Struct, frozen=True):
    """A line that might open or close fenced code."""

    start: int
    end: int  # past the newline
    before: str
    mark: str  # the whole run of ` or ~
    after: str


def pieces(text: str) -> list[Piece]:
    """Fenced code (with the lines that open and close it) and what lies between. Never closed, it goes to the end."""
    if sum(text.count(mark) for mark in MARKS if mark[0] in text) > MOST:
        return [Piece(text, fenced=True)]
    found: list[Piece] = []
    edge = 0  # where the piece that is being read began
    opened: _Fence | None = None
    for line in _fence_lines(text):
        if opened is None and _opens(line):
            if line.start > edge:
                found.append(Piece(text[edge : line.start], fenced=False))
            opened, edge = line, line.start
        elif opened is not None and _closes(line, opened):
            found.append(Piece(text[edge : line.end], fenced=True))
            opened, edge = None, line.end
    if edge < len(text):
        found.append(Piece(text[edge:], fenced=opened is not None))
    return found


def _opens(line: _Fence) -> bool:
    return not line.before.strip(BEFORE_OPENING) and line.mark[0] not in line.after


def _closes(line: _Fence, opened: _Fence) -> bool:
    same = line.mark[0] == opened.mark[0] and len(line.mark) >= len(opened.mark)
    return same and not line.before.strip(BEFORE_CLOSING) and not line.after.strip()


def _fence_lines(text: str) -> Iterator[_Fence]:
    """In order. Each line counts once, so the time is linear in the text."""
    lines = [line for mark in MARKS if mark[0] in text for line in _lines_with(text, mark)]
    yield from sorted(lines, key=lambda line: line.start)


def _lines_with(text: str, mark: str) -> Iterator[_Fence]:
    at = text.find(mark)
    while at >= 0:
        start = text.rfind("\n", 0, at) + 1
        newline = text.find("\n", at)
        end = len(text) if newline < 0 else newline + 1
        rest = text[at:end].lstrip(mark[0])
        yield _Fence(start, end, text[start:at], text[at : end - len(rest)], rest)
        at = text.find(mark, end)
