"""vLLM's OpenAI server."""

from typing import Final

from backends import metrics_text
from backends.dialect import Dialect
from backends.openai_http import OpenAIHttp
from backends.transport import Upstream

DIALECT: Final = Dialect("vllm", metrics="/metrics", names=metrics_text.VLLM)


def create(upstream: Upstream) -> OpenAIHttp:
    return OpenAIHttp(upstream, DIALECT)
