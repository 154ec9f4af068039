"""How a program that builds something tells how far it is: lines `progress 0.42 text` on its standard output."""

import math

import msgspec

_WORD = "progress"


class Progress(msgspec.Struct, frozen=True):
    """`fraction` of one command's work done, 0 to 1."""

    fraction: float
    text: str


def line(fraction: float, text: str) -> str:
    return f"{_WORD} {min(max(fraction, 0.0), 1.0):.3f} {text}"


def report(fraction: float, text: str) -> None:
    """Print a progress line at once.

    When whoever reads the lines is gone, this raises BrokenPipeError: a build whose parent was killed ends by itself.
    """
    print(line(fraction, text), flush=True)  # noqa: T201


def parse(text: str) -> Progress | None:
    """The progress that a line of output tells, or None if it is any other line."""
    word, _, rest = text.strip().partition(" ")
    number, _, words = rest.partition(" ")
    if word != _WORD:
        return None
    try:
        fraction = float(number)
    except ValueError:
        return None
    return Progress(min(max(fraction, 0.0), 1.0), words) if math.isfinite(fraction) else None
