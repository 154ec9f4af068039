"""A prompt's text as numbers, the same in training and in scoring: words, and features counted by hand."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

VERSION: Final = 1
"""Changes whenever the same text would give other words or other hand features."""

_OPTION: Final = re.compile(rb"^\(?[A-J][.):][ \t]*(.*)$", re.MULTILINE)

_OTHER, _SPACE, _DIGIT, _LETTER, _UPPER = range(5)  # letters last: one comparison finds them


def _classes() -> bytes:
    """What each byte is. Bytes of non-ASCII characters count as letters."""
    kinds = bytearray([_OTHER] * 128 + [_LETTER] * 128)
    for code in range(128):
        if chr(code).islower():
            kinds[code] = _LETTER
        elif chr(code).isupper():
            kinds[code] = _UPPER
        elif chr(code).isdigit():
            kinds[code] = _DIGIT
        elif chr(code).isspace():
            kinds[code] = _SPACE
    return bytes(kinds)


def _word_bytes() -> bytes:
    """Letters in lower case, every digit 0, a backslash kept (it starts a TeX command), the rest a space."""
    kept = bytearray(b" " * 128 + bytes(range(128, 256)))
    for code in range(128):
        if chr(code).isalpha():
            kept[code] = ord(chr(code).lower())
        elif chr(code).isdigit():
            kept[code] = ord("0")
    kept[ord("\\")] = ord("\\")
    return bytes(kept)


_CLASS: Final = _classes()
_WORDS: Final = _word_bytes()
_DIGITS: Final = bytes(code if code in b"0123456789" else ord(" ") for code in range(256))
_EDGE: Final = bytes([_SPACE])
_SIGNS: Final = "?$\\=^;{}%,\"()[]<>+-*/:|_'.!&#@`~"
_SIGN_CODES: Final = np.frombuffer(_SIGNS.encode(), dtype=np.uint8).astype(np.intp)
_PHRASES: Final = (
    "how many", "how much", "which of", "what is", "who ", "when ", "where ", "why ", "prove", "show that",
    "calculate", "find ", "write a", "explain", "except", "not ", "true", "probability", "most likely", "if ", "let ",
    "each", "statement", "percent", "answer", "equation", "determine", "according", "because", "she ", "he ", "def ",
    "none of", "all of",
)  # fmt: skip
_PHRASE_BYTES: Final = tuple(phrase.encode() for phrase in _PHRASES)
_SHAPE: Final = (
    "words", "stem bytes", "bytes", "lines", "numbers", "digit share", "capital share", "symbol share",
    "non-ascii share", "word length", "longest word", "word length spread", "words a sentence", "sentences",
    "long word share", "longest number", "decimals", "capitalised share", "last line", "asks", "ends a clause",
    "starts with a capital", "distinct bytes",
)  # fmt: skip
_OPTIONS: Final = ("options", "option length", "option spread", "options with digits", "longest option", "option words")

HAND: Final[tuple[str, ...]] = (
    *_SHAPE,
    *_OPTIONS,
    *(f"sign {sign}" for sign in _SIGNS),
    *(f"phrase {phrase.strip()}" for phrase in _PHRASES),
)
"""Names of the hand features, in order."""


class Text(msgspec.Struct, frozen=True):
    """One prompt made ready: its words in order, and the features of `HAND`, shape (len(HAND),)."""

    words: list[bytes]
    hand: NDArray[np.float64]


def read(text: str) -> Text:
    """Any string is accepted, the empty one and one with lone surrogates too. Time grows with the text: bound it."""
    raw = text.encode("utf-8", "surrogatepass")
    lowered = text.lower().encode("utf-8", "surrogatepass")
    return Text(words=lowered.translate(_WORDS).split(), hand=_hand(raw, lowered))


def _hand(raw: bytes, lowered: bytes) -> NDArray[np.float64]:
    stem, options = _split_options(raw)
    counts = np.bincount(np.frombuffer(raw, dtype=np.uint8), minlength=256)
    shape = [*_shape(stem, len(raw)), float(np.count_nonzero(counts)), *_about_options(options)]
    phrases = [lowered.count(phrase) for phrase in _PHRASE_BYTES]
    return np.array([*shape, *counts[_SIGN_CODES].tolist(), *phrases], dtype=np.float64)


def _split_options(raw: bytes) -> tuple[bytes, Sequence[bytes]]:
    """The question, and its lettered answers if there are at least two."""
    if b"\n" not in raw:  # one line is one answer at the most
        return raw, []
    options: list[bytes] = _OPTION.findall(raw)
    first = _OPTION.search(raw) if len(options) > 1 else None
    return (raw[: first.start()], options) if first else (raw, [])


def _shape(stem: bytes, size: int) -> list[float]:
    kinds = np.frombuffer(_EDGE + stem.translate(_CLASS) + _EDGE, dtype=np.uint8)
    gaps = (kinds < _LETTER).nonzero()[0]  # what lies between two of them is a word, or nothing
    by_length = np.bincount(gaps[1:] - gaps[:-1] - 1)
    by_length[0] = 0
    lengths = by_length.nonzero()[0]
    words = list(zip(lengths.tolist(), by_length[lengths].tolist(), strict=True))  # length, how many
    found = sum(many for _, many in words)
    letters = sum(length * many for length, many in words)
    squares = sum(length * length * many for length, many in words)
    digits = list(map(len, stem.translate(_DIGITS).split()))
    by_kind = np.bincount(kinds, minlength=5).tolist()
    count, whole = max(1, found), max(1, size)
    mean = float(letters) / count
    spread = max(0.0, float(squares) / count - mean * mean) ** 0.5
    sentences = max(
        1, sum(map(stem.count, (b". ", b"? ", b"! ", b".\n", b"?\n", b"!\n"))) + stem.endswith((b".", b"?", b"!"))
    )
    stripped = stem.rstrip()
    return [
        found,
        len(stem),
        size,
        stem.count(b"\n"),
        len(digits),
        by_kind[_DIGIT] / whole,
        by_kind[_UPPER] / whole,
        by_kind[_OTHER] / whole,
        _continued(stem) / whole,
        mean,
        words[-1][0] if words else 0,
        spread,
        found / sentences,
        sentences,
        sum(many for length, many in words if length > 8) / count,  # noqa: PLR2004 - what counts as a long word
        max(digits, default=0),
        stem.count(b"."),
        int(np.count_nonzero(kinds[gaps[:-1] + 1] == _UPPER)) / count,
        len(stripped) - stripped.rfind(b"\n") - 1,
        stripped.endswith(b"?"),
        stripped.endswith((b".", b":")),
        stem[:1].isupper(),
    ]


def _continued(text: bytes) -> int:
    """Bytes more than characters, and those that make no character."""
    return 0 if text.isascii() else len(text) - len(text.decode("utf-8", "ignore"))


def _about_options(options: Sequence[bytes]) -> list[float]:
    if not options:
        return [0, -1, -1, -1, -1, -1]
    lengths = [len(option) for option in options]
    mean = sum(lengths) / len(options)
    return [
        len(options),
        mean,
        max(0.0, sum(length * length for length in lengths) / len(options) - mean * mean) ** 0.5,
        sum(any(48 <= byte <= 57 for byte in option) for option in options) / len(options),  # noqa: PLR2004 - 0 to 9
        max(lengths),
        sum(option.count(b" ") for option in options) / len(options),
    ]
