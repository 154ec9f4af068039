"""The Prometheus text format, version 0.0.4, of everything the instruments hold."""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from telemetry.aggregate import Buckets, Number
from telemetry.instruments import Collected, Instruments
from telemetry.names import prometheus_label

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(instruments: Instruments, target: Mapping[str, str] | None = None) -> bytes:
    """The body of an answer to `GET /metrics`. `target`: resource attributes, told as `target_info`."""
    lines = list(_target(target)) if target else []
    for collected in instruments.collect():
        lines.extend(_metric(collected))
    return ("\n".join(lines) + "\n").encode()


def _target(attributes: Mapping[str, str]) -> Iterator[str]:
    yield "# HELP target_info Resource attributes of this process."
    yield "# TYPE target_info gauge"
    yield f"target_info{_braces(_labels(attributes))} 1"


def _metric(collected: Collected) -> Iterator[str]:
    metric, series = collected
    if not series:
        return
    name = metric.prometheus
    yield f"# HELP {name} {_escaped(metric.description, quote=False)}"
    yield f"# TYPE {name} {metric.kind}"
    for attributes, cell in series:
        labels = _labels(attributes)
        if isinstance(cell, Number):
            yield f"{name}{_braces(labels)} {number(cell.value)}"
        else:
            yield from _histogram(name, labels, cell)


def _histogram(name: str, labels: str, cell: Buckets) -> Iterator[str]:
    comma = "," if labels else ""
    cumulative = list(accumulate(list(cell.counts)))
    for bound, count in zip(cell.bounds, cumulative[:-1], strict=True):
        yield f'{name}_bucket{{{labels}{comma}le="{bound!r}"}} {count}'
    yield f'{name}_bucket{{{labels}{comma}le="+Inf"}} {cumulative[-1]}'
    yield f"{name}_sum{_braces(labels)} {number(cell.total)}"
    yield f"{name}_count{_braces(labels)} {cumulative[-1]}"


def _labels(attributes: Mapping[str, str]) -> str:
    return ",".join(f'{prometheus_label(name)}="{_escaped(value, quote=True)}"' for name, value in attributes.items())


def _braces(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _escaped(text: str, *, quote: bool) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quote else text


def number(value: float) -> str:
    """A number as Prometheus reads it: whole ones without a fraction, never in less than full precision."""
    if value != value:  # noqa: PLR0124 - only NaN differs from itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
