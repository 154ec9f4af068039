"""Which backends there are: ours by name, others' by entry point."""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Final, cast

from backends import llamacpp, tgi, trtllm, vllm
from backends.openai_http import OpenAIHttp
from backends.transport import Upstream
from backends.types import Backend

Factory = Callable[[Upstream], Backend]

GROUP: Final = "turnout.backends"

OURS: Final[Mapping[str, Factory]] = {
    "openai": OpenAIHttp,
    "llamacpp": llamacpp.create,
    "vllm": vllm.create,
    "tgi": tgi.create,
    "trtllm": trtllm.create,
}


def factories() -> Mapping[str, Factory]:
    """A plugin may add a name; it may not replace one of ours. Raises what a broken plugin raises."""
    theirs = {point.name: cast("Factory", point.load()) for point in entry_points(group=GROUP)}
    return {**theirs, **OURS}


def create(upstream: Upstream) -> Mapping[str, Backend]:
    """Every backend, over one transport."""
    return {name: factory(upstream) for name, factory in factories().items()}
