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

_OTHER, _LETTER, _UPPER, _DIGIT, _SPACE = range(5)


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
    options: list[bytes] = _OPTION.findall(raw)
    first = _OPTION.search(raw) if len(options) > 1 else None
    return (raw[: first.start()], options) if first else (raw, [])


def _runs(mask: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Start and length of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False]))))
    return edges[::2], edges[1::2] - edges[::2]


def _shape(stem: bytes, size: int) -> list[float]:
    kinds = np.frombuffer(stem.translate(_CLASS), dtype=np.uint8)
    starts, lengths = _runs((kinds == _LETTER) | (kinds == _UPPER))
    _, digits = _runs(kinds == _DIGIT)
    by_kind = np.bincount(kinds, minlength=5).tolist()
    count, whole = max(1, len(lengths)), max(1, size)
    mean = float(lengths.sum()) / count
    spread = max(0.0, float((lengths * lengths).sum()) / count - mean * mean) ** 0.5
    sentences = max(
        1, sum(map(stem.count, (b". ", b"? ", b"! ", b".\n", b"?\n", b"!\n"))) + stem.endswith((b".", b"?", b"!"))
    )
    stripped = stem.rstrip()
    return [
        len(lengths),
        len(stem),
        size,
        stem.count(b"\n"),
        len(digits),
        by_kind[_DIGIT] / whole,
        by_kind[_UPPER] / whole,
        by_kind[_OTHER] / whole,
        (len(stem) - len(stem.decode("utf-8", "ignore"))) / whole,
        mean,
        int(lengths.max(initial=0)),
        spread,
        len(lengths) / sentences,
        sentences,
        int(np.count_nonzero(lengths > 8)) / count,  # noqa: PLR2004 - what counts as a long word
        int(digits.max(initial=0)),
        stem.count(b"."),
        int(np.count_nonzero(kinds[starts] == _UPPER)) / count,
        len(stripped) - stripped.rfind(b"\n") - 1,
        stripped.endswith(b"?"),
        stripped.endswith((b".", b":")),
        stem[:1].isupper(),
    ]


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
