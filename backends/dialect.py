"""How one kind of server differs from plain OpenAI: what is added to a request, where its health and load are."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from backends.metrics_text import Names
from backends.types import Call

Fields = dict[str, msgspec.Raw]  # a JSON object opened one level: values we do not touch stay as they came

_NULL: Final = b"null"
_TRUE: Final = b"true"
_fields = msgspec.json.Decoder(Fields)


def nothing_more(fields: Fields) -> None:
    """A server that takes OpenAI's fields as they are."""
    del fields


class Dialect(msgspec.Struct, frozen=True):
    """Data, and one small pure function. `health` and `metrics` are paths; None: there is none."""

    name: str
    health: str = "/health"
    metrics: str | None = None
    names: Names | None = None
    streams_always: bool = False  # also for callers that did not ask: the answer is put together here
    closes_after_stream: bool = False  # the server shuts the connection although it promised to keep it
    progress: bool = False  # has chunks that only say how far the prompt is
    more: Callable[[Fields], None] = nothing_more  # adds fields to a generating request, in place


OPENAI: Final = Dialect("openai", health="/v1/models")


class Prepared(msgspec.Struct, frozen=True):
    """A request as it goes upstream, and what its answer needs."""

    body: bytes
    streams: bool
    strip_usage: bool = False
    strip_progress: bool = False
    choices: int = 1


def prepare(call: Call, dialect: Dialect) -> Prepared:
    """Edit the request one level deep where the dialect or the metering needs it; else its bytes stay as they are.

    Raises msgspec.MsgspecError for a body that is no JSON object.
    """
    streams = call.stream or dialect.streams_always
    if call.operation == "embeddings" or (not streams and dialect.more is nothing_more):
        return Prepared(call.body, streams=False)
    fields = _fields.decode(call.body)
    wants_progress = call.stream and bytes(fields.get("return_progress", b"")) == _TRUE
    dialect.more(fields)
    if streams:
        fields["stream"] = msgspec.Raw(_TRUE)
        fields["stream_options"] = _with_usage(fields.get("stream_options"))
    return Prepared(
        msgspec.json.encode(fields),
        streams=streams,
        strip_usage=call.stream and not call.wants_usage,
        strip_progress=dialect.progress and not wants_progress,
        choices=_choices(fields.get("n")),
    )


def given(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Whether the client said something of this field: null says nothing."""
    return name in fields and bytes(fields[name]) != _NULL


def _with_usage(options: msgspec.Raw | None) -> msgspec.Raw:
    """The client's own stream_options, and include_usage."""
    merged: Fields = {}
    if options is not None:
        try:
            merged = _fields.decode(options)
        except msgspec.MsgspecError:  # null, or nonsense that only a stream would have been refused for
            merged = {}
    merged["include_usage"] = msgspec.Raw(_TRUE)
    return msgspec.Raw(msgspec.json.encode(merged))


def _choices(value: msgspec.Raw | None) -> int:
    number = bytes(value) if value is not None else b"1"
    return int(number) if number.isdigit() and len(number) < 4 else 1  # noqa: PLR2004
