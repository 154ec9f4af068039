"""Text Generation Inference, by its OpenAI-like `/v1` routes; its kinds of error are read in `backends.refusals`."""

from typing import Final

from backends import metrics_text
from backends.dialect import Dialect
from backends.openai_http import OpenAIHttp
from backends.transport import Upstream

DIALECT: Final = Dialect("tgi", metrics="/metrics", names=metrics_text.TGI)


def create(upstream: Upstream) -> OpenAIHttp:
    return OpenAIHttp(upstream, DIALECT)
