"""What the classifier may know of a request, read from its messages in bounded time."""

import json
from collections.abc import Iterable
from typing import Final

import msgspec

LIMIT: Final = 6_000
"""Characters of a text that are looked at: the first half of them from its start, the rest from its end."""


class Prompt(msgspec.Struct, frozen=True):
    """One request as the classifier sees it. Texts are cut to `LIMIT`; `size` is the characters before the cut.

    The shipped model reads `text` alone, since its training rows are single turns; the rest is kept for rules
    and for models trained on traffic.
    """

    text: str  # of the last user turn
    size: int = 0
    system: str = ""
    turns: int = 1  # user turns
    has_tools: bool = False
    has_images: bool = False
    max_tokens: int | None = None


class _Part(msgspec.Struct, frozen=True):
    type: str = "text"
    text: str | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str = ""
    content: str | list[_Part] | None = None


def bounded(text: str, limit: int = LIMIT) -> str:
    """The text, or its head and tail when it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n{text[-half:]}"


def from_text(text: str) -> Prompt:
    """A single user turn."""
    return Prompt(text=bounded(text), size=len(text))


def from_messages(messages_json: bytes, *, has_tools: bool = False, max_tokens: int | None = None) -> Prompt:
    """From the `messages` of a chat request, still JSON. Raises ValueError when they are no list of messages."""
    messages = _decode(messages_json)
    users = [message for message in messages if message.role == "user"]
    last = _text(users[-1].content) if users else ""
    system = "\n".join(_text(message.content) for message in messages if message.role in ("system", "developer"))
    return Prompt(
        text=bounded(last),
        size=len(last),
        system=bounded(system),
        turns=len(users),
        has_tools=has_tools,
        has_images=any(_images(message.content) for message in users),
        max_tokens=max_tokens,
    )


def _decode(messages_json: bytes) -> list[_Message]:
    try:
        return msgspec.json.decode(messages_json, type=list[_Message])
    except msgspec.ValidationError as error:
        raise ValueError(f"not a list of chat messages: {error}") from error
    except msgspec.DecodeError as error:
        # the standard library also takes lone surrogates, which clients do send
        try:
            return msgspec.convert(json.loads(messages_json), list[_Message])
        except (ValueError, RecursionError):
            raise ValueError(f"not a list of chat messages: {error}") from error


def _text(content: str | Iterable[_Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content if part.text)


def _images(content: str | Iterable[_Part] | None) -> bool:
    return not isinstance(content, str) and any("image" in part.type for part in content or ())
