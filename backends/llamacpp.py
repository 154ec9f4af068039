"""llama.cpp's own server: it notices that a client has left only when it writes, so it is always made to write."""

from typing import Final

import msgspec

from backends import metrics_text
from backends.dialect import Dialect, Fields, given
from backends.openai_http import OpenAIHttp
from backends.transport import Upstream

# Without a limit the server generates to the end of the slot. Long enough for most answers, short enough that a runaway
# one does not hold a slot for minutes.
DEFAULT_MAX_TOKENS: Final = 1024

_LIMITS: Final = ("max_tokens", "max_completion_tokens", "n_predict")


def more(fields: Fields) -> None:
    """Ask for progress chunks (a write for each batch of the prompt), and bound the answer where the client did not."""
    fields["return_progress"] = msgspec.Raw(b"true")
    if not any(given(fields, name) for name in _LIMITS):
        fields["max_tokens"] = msgspec.Raw(b"%d" % DEFAULT_MAX_TOKENS)


DIALECT: Final = Dialect(
    "llamacpp",
    metrics="/metrics",
    names=metrics_text.LLAMACPP,
    streams_always=True,
    closes_after_stream=True,
    progress=True,
    more=more,
)


def create(upstream: Upstream) -> OpenAIHttp:
    return OpenAIHttp(upstream, DIALECT)
