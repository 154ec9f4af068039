"""Load, read from the text that model servers publish for Prometheus."""

import math
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from backends.types import Load

# name, labels, value; a timestamp or an exemplar may follow. A label's value may hold any character.
_SAMPLE: Final = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\s*\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s+(\S+)')


class Names(msgspec.Struct, frozen=True):
    """Where one kind of server says what. `kv` is a share; or it is `kv_used` over `kv_all`; or it is not said."""

    running: str
    waiting: str
    kv: str | None = None
    kv_used: str | None = None
    kv_all: str | None = None


VLLM: Final = Names("vllm:num_requests_running", "vllm:num_requests_waiting", kv="vllm:kv_cache_usage_perc")
TGI: Final = Names(
    "tgi_batch_current_size",
    "tgi_queue_size",
    kv_used="tgi_batch_current_max_tokens",
    kv_all="tgi_batch_max_total_tokens",
)
TRTLLM: Final = Names("trtllm_num_requests_running", "trtllm_num_requests_waiting", kv="trtllm_kv_cache_utilization")
LLAMACPP: Final = Names("llamacpp:requests_processing", "llamacpp:requests_deferred")


def read_load(text: str, names: Names) -> Load:
    """Requests are summed over a metric's series (one for each engine core), the KV share is the fullest one's.

    Lines that make no sense are passed over: half a scrape must not take a replica out.
    """
    series: dict[str, list[float]] = {}
    for name, value in _samples(text):
        series.setdefault(name, []).append(value)
    return Load(
        running=int(sum(series.get(names.running, []))),
        waiting=int(sum(series.get(names.waiting, []))),
        kv_used=_share(series, names),
    )


def _share(series: dict[str, list[float]], names: Names) -> float | None:
    if names.kv in series:
        return min(max(*series[names.kv], 0.0), 1.0)
    if names.kv_used in series and names.kv_all in series:
        room = sum(series[names.kv_all])
        return min(sum(series[names.kv_used]) / room, 1.0) if room > 0 else None
    return None


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for line in text.split("\n"):
        match = _SAMPLE.match(line)
        if match is None:
            continue
        value = _number(match[2])
        if value is not None and value >= 0:
            yield match[1], value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
