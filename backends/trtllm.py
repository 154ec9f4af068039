"""TensorRT-LLM's `trtllm-serve`.

It refuses a request with a key it does not know; nothing is dropped here, so the client gets the server's 400.
Load comes from `/prometheus/metrics`: the JSON at `/metrics` is a queue that every reader empties for all others.
"""

from typing import Final

from backends import metrics_text
from backends.dialect import Dialect
from backends.openai_http import OpenAIHttp
from backends.transport import Upstream

DIALECT: Final = Dialect("trtllm", metrics="/prometheus/metrics", names=metrics_text.TRTLLM)


def create(upstream: Upstream) -> OpenAIHttp:
    return OpenAIHttp(upstream, DIALECT)
