"""The client's JSON, opened one level deep: what the gateway does not understand passes through untouched."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Self

import msgspec
from typing_extensions import override

from backends.types import Operation
from gateway.serve.errors import BadRequest

Fields = Mapping[str, msgspec.Raw]

_open: Callable[[bytes], dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text: Callable[[msgspec.Raw], str] = msgspec.json.Decoder(str).decode

PROMPT: Mapping[Operation, str] = {"chat": "messages", "completions": "prompt", "embeddings": "input"}
LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")  # the first that is a whole number counts
LONGEST_NUMBER = 15  # digits: more than any count of tokens, and never slow to read


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class Body(msgspec.Struct, frozen=True, dict=True):
    """One request. `fields` holds each top-level value as the client wrote it, byte for byte."""

    raw: bytes
    operation: Operation
    fields: dict[str, msgspec.Raw]
    model: str
    stream: bool = False
    wants_usage: bool = False  # stream_options.include_usage
    max_tokens: int | None = None  # what the client allows for one answer; None: it does not say
    n: int = 1  # answers asked for

    @classmethod
    def parse(cls, raw: bytes, operation: Operation) -> Self:
        """Open the body. Raises BadRequest, whose `param` names the field.

        Checked is only what the gateway itself must understand: the model, `stream`, and that there is a prompt.
        A key that comes twice counts as its last value, as in every common JSON reader.
        """
        fields = _fields(raw)
        _check_prompt(fields, operation)
        return cls(
            raw,
            operation,
            fields,
            model=_model(fields),
            stream=_stream(fields),
            wants_usage=_wants_usage(fields),
            max_tokens=_max_tokens(fields),
            n=_count(fields, "n") or 1,
        )

    @override
    def __repr__(self) -> str:
        """Never the text of a prompt: this ends up in logs and tracebacks."""
        return f"Body({self.operation}, model={self.model!r}, {len(self.raw)} bytes)"

    def rewritten(self, **changes: object) -> bytes:
        """The same request with top-level fields replaced or added (msgspec.Raw goes in as it is).

        Key order stays, and so does every byte of the other values.
        """
        return msgspec.json.encode({**self.fields, **changes})

    def shaped(self, *, model: str, text: bytes | None = None) -> bytes:
        """The request as a server gets it: under the name it knows and, where `text` is given, with that prompt."""
        if text is None:
            return self.rewritten(model=model)
        return self.rewritten(model=model, **{PROMPT[self.operation]: msgspec.Raw(text)})

    @cached_property
    def prompt_text(self) -> bytes:
        """The bytes that decide the engine's prefix, in the order of chat templates: tools, then the prompt as JSON."""
        return self.with_messages(bytes(self.fields[PROMPT[self.operation]]))

    def with_messages(self, prompt: bytes) -> bytes:
        """What `prompt_text` would be with another prompt (JSON): messages of a chat, prompt or input."""
        tools = self.fields.get("tools")
        return prompt if tools is None else bytes(tools) + prompt


def _fields(raw: bytes) -> dict[str, msgspec.Raw]:
    try:
        if not raw.isascii():
            raw.decode()  # the reader below leaves strings that it only steps over unchecked
        return _open(raw)
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not valid UTF-8 (byte {error.start}).") from error
    except msgspec.ValidationError as error:
        raise BadRequest("The body must be a JSON object.") from error
    except msgspec.DecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise BadRequest("The body is nested too deeply.") from error


def _first(value: msgspec.Raw) -> str:
    """The first character of a JSON value tells its type."""
    return chr(memoryview(value)[0])


def _model(fields: Fields) -> str:
    value = fields.get("model")
    if value is None:
        raise BadRequest("The field 'model' is missing.", param="model")
    if _first(value) != '"':
        raise BadRequest("The field 'model' must be a string.", param="model")
    model = _text(value)
    if not model:
        raise BadRequest("The field 'model' is empty.", param="model")
    return model


def _check_prompt(fields: Fields, operation: Operation) -> None:
    name = PROMPT[operation]
    value = fields.get(name)
    if value is None:
        raise BadRequest(f"The field '{name}' is missing.", param=name)
    if operation == "chat" and _first(value) != "[":
        raise BadRequest("The field 'messages' must be an array.", param="messages")


def _stream(fields: Fields) -> bool:
    value = fields.get("stream")
    if value is None:
        return False
    match bytes(value):
        case b"true":
            return True
        case b"false" | b"null":
            return False
        case _:
            raise BadRequest("The field 'stream' must be true or false.", param="stream")


def _wants_usage(fields: Fields) -> bool:
    value = fields.get("stream_options")
    if value is None:
        return False
    try:
        return msgspec.json.decode(value, type=_StreamOptions).include_usage is True
    except msgspec.DecodeError:
        return False  # the model server will say what is wrong with it


def _max_tokens(fields: Fields) -> int | None:
    for name in LIMITS:
        if (count := _count(fields, name)) is not None:
            return count
    return None


def _count(fields: Fields, name: str) -> int | None:
    """A whole number above zero; anything else is the model server's to judge."""
    value = fields.get(name)
    if value is None:
        return None
    digits = bytes(value)
    if len(digits) > LONGEST_NUMBER or not digits.isdigit():
        return None
    return int(digits) or None
