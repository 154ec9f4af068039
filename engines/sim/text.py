"""What the simulated model reads and says: deterministic tokens, texts and vectors, no model behind them.

A token is a piece of at most four bytes of UTF-8 with the white space before it; its id is a hash of the piece.
"""

import random
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec
import xxhash

Tokens: TypeAlias = "array[int]"  # ids of 31 bits

_PIECE = re.compile(rb"\s*\S{1,4}|\s+")
_ID_MASK = 0x7FFFFFFF
# One token a word (at most four bytes), a few of them not ASCII: every eighth word, so that short answers have one.
_PLAIN = tuple(
    """
    the a of to in is it as at we go on so no up by or an be do if me my he us all and are but can day eye far for
    get had her him his how its led let low man may new not now off old one our out own put red run saw say see
    she sun ten too top try two use was way who why win yes yet you also back been both call come dark door down
    each even ever face fact fall find five form four full gave give goes gold good half hand hard have head hear
    held here high hold home hope hour idea into just keep kind knew know land last late lead left less life line
    list live long look lost love made main make many mean mind more most move much must name near need next once
    only open over page part past play read real rest road room rule said same seem sent side sign site some song
    soon stay such sure take talk tell test than that them then they this time told took tree true turn type unit
    upon very view wait walk wall want warm wave well went were west what when wide will wind wish with wood word
    work
    """.split()  # noqa: SIM905  readable
)
_ACCENTED = ("né", "où", "你", "ça", "thé", "là", "好", "dû")


def tokenize(text: str) -> Tokens:
    """The token ids of a text, about one for every four bytes."""
    digest = xxhash.xxh32_intdigest
    return array("I", [digest(piece) & _ID_MASK for piece in _PIECE.findall(text.encode("utf-8", "surrogatepass"))])


def pieces(text: str) -> list[bytes]:
    """The pieces that `tokenize` hashes; joined they are the text again."""
    return _PIECE.findall(text.encode("utf-8", "surrogatepass"))


def chat_prompt(messages: Sequence[Mapping[str, Any]], tools: object = None) -> str:
    """What a chat becomes before it is tokenised: tools first, then the messages; equal heads give equal heads."""
    parts = [f"<|tools|>\n{msgspec.json.encode(tools).decode()}\n"] if tools else []
    for message in messages:
        parts.append(f"<|{message.get('role', 'user')}|>\n{content_text(message.get('content'))}\n")
        if message.get("tool_calls"):
            parts.append(msgspec.json.encode(message["tool_calls"]).decode() + "\n")
    parts.append("<|assistant|>\n")
    return "".join(parts)


def content_text(content: object) -> str:
    """The words of a message: a string, a list of parts, or null."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(_part_text(part) for part in cast("list[object]", content))


def _part_text(part: object) -> str:
    """The text of a part; of any other part its JSON, so that other pictures are other tokens."""
    if isinstance(part, dict):
        words = cast("dict[str, object]", part).get("text")
        if isinstance(words, str):
            return words
    return part if isinstance(part, str) else msgspec.json.encode(part).decode()


def answer(prompt: Tokens, seed: int, choice: int, count: int) -> list[str]:
    """`count` words, each one token, that depend on nothing but the arguments."""
    rng = random.Random(xxhash.xxh3_64_intdigest(prompt.tobytes(), seed=(seed * 31 + choice) & 0xFFFFFFFF))  # noqa: S311  no secret
    return list(_words(rng, count))


def _words(rng: random.Random, count: int) -> Iterator[str]:
    for index in range(count):
        word = rng.choice(_ACCENTED if index % 8 == 1 else _PLAIN)
        yield word if index == 0 else " " + word


def vector(text: str, dimensions: int) -> list[float]:
    """A unit vector that depends on the text alone."""
    rng = random.Random(xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")))  # noqa: S311  no secret
    values = [rng.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = sum(value * value for value in values) ** 0.5 or 1.0
    return [value / length for value in values]
