"""Putting a streamed answer together again, for callers that asked for one JSON document."""

from collections.abc import Mapping
from typing import Final, cast

import msgspec

Json = dict[str, object]

_TEXTS: Final = frozenset({"content", "reasoning_content", "reasoning", "refusal"})
_KINDS: Final = {"chat.completion.chunk": "chat.completion"}


class Assembly:
    """Takes the chunks of one answer in order; `document` gives the whole. Of unknown fields the last one wins."""

    def __init__(self) -> None:
        self._top: Json = {}
        self._choices: dict[int, Choice] = {}

    def add(self, chunk: Mapping[str, object]) -> None:
        for name, value in chunk.items():
            if name == "choices":
                for choice in _dicts(value):
                    self._choice(choice).add(choice)
            elif value is not None or name not in self._top:
                self._top[name] = value

    def _choice(self, chunk: Json) -> "Choice":
        index = chunk.get("index")
        number = index if isinstance(index, int) else 0
        return self._choices.setdefault(number, Choice(number))

    def document(self) -> bytes:
        kind = self._top.get("object")
        top = {**self._top, "object": _KINDS.get(kind, kind) if isinstance(kind, str) else "chat.completion"}
        usage = {"usage": top.pop("usage")} if "usage" in top else {}
        choices = [choice.document() for _, choice in sorted(self._choices.items())]
        return msgspec.json.encode({**top, "choices": choices, **usage})


class Choice:
    """One of the alternatives of an answer: a chat message, or the text of a completion."""

    def __init__(self, index: int) -> None:
        self._fields: Json = {"index": index}
        self._message: Json = {}
        self._pieces: dict[str, list[str]] = {}
        self._text: list[str] = []
        self._is_chat = False
        self._calls = ToolCalls()
        self._function: Json = {}

    def add(self, chunk: Json) -> None:
        for name, value in chunk.items():
            if name == "delta":
                self._is_chat = True
                self._delta(cast("Json", value) if isinstance(value, dict) else {})
            elif name == "text" and isinstance(value, str):
                self._text.append(value)
            elif name == "logprobs" and isinstance(value, dict):
                self._fields[name] = _joined(self._fields.get(name), cast("Json", value))
            elif value is not None or name not in self._fields:
                self._fields[name] = value

    def _delta(self, delta: Json) -> None:
        for name, value in delta.items():
            if name == "tool_calls":
                for fragment in _dicts(value):
                    self._calls.add(fragment)
            elif name == "function_call" and isinstance(value, dict):
                _continue_function(self._function, cast("Json", value))
            elif name in _TEXTS and isinstance(value, str):
                self._pieces.setdefault(name, []).append(value)
            elif value is not None or name not in self._message:
                self._message[name] = value

    def document(self) -> Json:
        if not self._is_chat:
            return {"text": "".join(self._text), **self._fields}
        message: Json = {"role": "assistant", "content": None, **self._message}
        message |= {name: "".join(pieces) for name, pieces in self._pieces.items()}
        calls = self._calls.document()
        if calls:
            message["tool_calls"] = calls
        if self._function:
            message["function_call"] = self._function
        if message["content"] is None and not calls and not self._function:
            message["content"] = ""  # null is for a message that is nothing but calls
        return {"index": self._fields["index"], "message": message, **self._fields}


class ToolCalls:
    """The tool calls of one choice, from fragments whose index or id may be missing, repeated or interleaved.

    A known id continues its call. A new id, or a new name, begins one. Without either, the index says which call
    goes on, and without an index it is the last one. Two calls are never merged and names never joined.
    """

    def __init__(self) -> None:
        self._calls: list[Json] = []
        self._indexes: list[object] = []

    def add(self, fragment: Json) -> None:
        call = self._find(fragment)
        if call is None:
            begun: Json = {}
            call = begun
            self._calls.append(call)
            self._indexes.append(fragment.get("index"))
        for name, value in fragment.items():
            if name == "function" and isinstance(value, dict):
                function = cast("Json", call.setdefault("function", {}))
                _continue_function(function, cast("Json", value))
            elif name == "id":
                if value and not call.get("id"):
                    call["id"] = value
            elif name != "index" and (value is not None or name not in call):
                call[name] = value

    def _find(self, fragment: Json) -> Json | None:
        """The call that this fragment continues; None: it begins a new one."""
        id_, index, name = fragment.get("id"), fragment.get("index"), _name(fragment)
        if id_:
            same = next((call for call in reversed(self._calls) if call.get("id") == id_), None)
            if same is not None:
                return same
        at_index = self._latest(index)
        if id_ and index is None and at_index is not None and at_index.get("id"):
            return None
        if name:
            return at_index if at_index is not None and self._goes_on(at_index, id_, name, fragment) else None
        return at_index

    def _latest(self, index: object) -> Json | None:
        if index is None:
            return self._calls[-1] if self._calls else None
        pairs = zip(reversed(self._calls), reversed(self._indexes), strict=True)
        return next((call for call, known in pairs if known == index), None)

    @staticmethod
    def _goes_on(call: Json, id_: object, name: str, fragment: Json) -> bool:
        """Whether a fragment that names a function still belongs to the call at its index."""
        known = _name(call)
        if not known:
            return not (id_ and call.get("id"))
        if id_ or known != name or fragment.get("index") is None:
            return False
        return not _is_whole(_arguments(call))  # an engine that repeats the name with every piece

    def document(self) -> list[Json]:
        return [{"type": "function", **call} for call in self._calls]


def _continue_function(function: Json, more: Json) -> None:
    for name, value in more.items():
        if name == "arguments":
            piece = value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()
            before = function.get("arguments")
            function["arguments"] = (before if isinstance(before, str) else "") + piece
        elif name == "name":
            if value and not function.get("name"):
                function["name"] = value
        elif value is not None or name not in function:
            function[name] = value


def _joined(before: object, more: Json) -> Json:
    """Logprobs: lists go on (chat's content and refusal, the parallel lists of completions), the rest is replaced."""
    whole = dict(cast("Json", before)) if isinstance(before, dict) else {}
    for name, value in more.items():
        known = whole.get(name)
        if isinstance(known, list) and isinstance(value, list):
            cast("list[object]", known).extend(cast("list[object]", value))
        elif value is not None or name not in whole:
            whole[name] = value
    return whole


def _dicts(value: object) -> list[Json]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Json", item) for item in items if isinstance(item, dict)]


def _function(call: Json) -> Json:
    function = call.get("function")
    return cast("Json", function) if isinstance(function, dict) else {}


def _name(call: Json) -> str:
    name = _function(call).get("name")
    return name if isinstance(name, str) else ""


def _arguments(call: Json) -> str:
    arguments = _function(call).get("arguments")
    return arguments if isinstance(arguments, str) else ""


def _is_whole(arguments: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.MsgspecError, RecursionError):
        return False
