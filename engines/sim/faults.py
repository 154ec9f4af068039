"""Everything that can be made to go wrong, to order: for one request, or for all until it is taken back.

An order is a comma-separated list of names with an optional number, e.g. `cut:5` or `slow:0.5,no-done`. It comes with
the header `x-sim-fault`, with the key `sim_fault` of the request's JSON (which passes through a gateway that forwards
what it does not know), with `--fault`, or with `PUT /sim/fault`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec


class Kind(msgspec.Struct, frozen=True):
    """One fault: the number it goes without, and what happens."""

    default: float | None  # None: it takes no number
    doc: str


FAULTS: Final[Mapping[str, Kind]] = {
    "429": Kind(1, "answer 429; the number is Retry-After in seconds"),
    "503": Kind(None, "answer 503 without Retry-After"),
    "500": Kind(None, "answer 500"),
    "hang-up": Kind(None, "read the request, then close the connection without a byte"),
    "reset": Kind(5, "reset the connection (RST, not FIN) after so many tokens"),
    "slow": Kind(1, "the head and the first byte come so many seconds late"),
    "slow-body": Kind(1, "the head comes at once, the first body byte so many seconds late"),
    "cut": Kind(5, "close the connection between two events after so many tokens; a whole answer is cut in half"),
    "cut-inside": Kind(5, "close the connection in the middle of the event after so many tokens"),
    "silence": Kind(5, "say nothing more after so many tokens, and keep the connection open"),
    "error-event": Kind(5, "after so many tokens send an error event as the engine does, then close"),
    "malformed": Kind(5, "the event after so many tokens is not JSON; the ones after it are sound"),
    "split": Kind(None, "write one byte at a time"),
    "split-codepoint": Kind(None, "write in pieces that end inside UTF-8 code points"),
    "no-done": Kind(None, "leave out `data: [DONE]`"),
    "no-usage": Kind(None, "never tell usage"),
    "usage-on-choice": Kind(None, "tell usage on the chunk with the finish_reason, not on one of its own"),
    "role-only": Kind(None, "begin with a chunk that has nothing but a role and an empty content"),
    "no-role": Kind(None, "leave the role chunk out"),
    "full-text": Kind(None, "each delta holds the whole text so far, as trtllm-serve has done"),
    "close": Kind(None, "close the connection after the answer without having said so"),
    "gzip": Kind(None, "compress the answer with gzip whatever the client accepts"),
    "comments": Kind(None, "a comment line before each event"),
    "crlf": Kind(None, "end lines with CR LF"),
    "no-space": Kind(None, "no space after `data:`"),
    "separators": Kind(None, "U+0085, U+2028 and U+2029 inside the text of every token"),
    "deaf": Kind(None, "notice that the client has left only when writing to it, as llama.cpp's server does"),
}


class UnknownFault(ValueError):
    """An order names a fault that does not exist, or a number where none can be."""


class Faults:
    """A parsed order. `faults["cut"]` is its number, None where the fault was not ordered."""

    __slots__ = ("_numbers", "order")

    def __init__(self, order: str = "") -> None:
        """Raises UnknownFault."""
        self.order = order
        self._numbers = dict(_parse(one.strip()) for one in order.split(",") if one.strip())

    def __getitem__(self, name: str) -> float | None:
        return self._numbers.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def refusal(self) -> tuple[int, float | None] | None:
        """The status to refuse with, and its Retry-After in seconds."""
        for name in ("429", "503", "500"):
            if name in self:
                return int(name), self[name] if name == "429" else None
        return None

    def strikes(self, name: str, sent: int, tokens: int) -> bool:
        """Whether this fault happens in place of a frame with `tokens` tokens, `sent` having gone before it."""
        limit = self[name]
        return limit is not None and tokens > 0 and sent + tokens > limit


def _parse(one: str) -> tuple[str, float]:
    name, separator, number = one.partition(":")
    kind = FAULTS.get(name)
    if kind is None:
        raise UnknownFault(f"There is no fault {name!r}. Known: {', '.join(FAULTS)}.")
    if not separator:
        return name, kind.default if kind.default is not None else 1.0
    if kind.default is None:
        raise UnknownFault(f"The fault {name!r} takes no number.")
    try:
        return name, float(number)
    except ValueError as error:
        raise UnknownFault(f"The fault {name!r} takes a number, not {number!r}.") from error
