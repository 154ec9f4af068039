"""Records, clocks and readers for the tests of telemetry."""

import math
import re

from telemetry.record import RequestRecord

PROMPT = "the moon is made of a cheese nobody knows"  # must never be found in anything that is written


def a_record(**changes):
    """A finished request; `changes` replace its fields."""
    fields = {
        "id": "req-1",
        "at": 1_700_000_000.0,
        "operation": "chat",
        "caller": "dev",
        "model": "auto",
        "pool": "small",
        "replica": "small-0",
        "route": "gain=0.23",
        "prompt_bytes": 400,
        "sent_bytes": 300,
        "prompt_tokens": 75,
        "cached_tokens": 50,
        "completion_tokens": 11,
        "form": "lossless",
        "prefix_hit": 0.8,
        "queued": 0.002,
        "decided": 0.0003,
        "ttft": 0.05,
        "tpot": 0.02,
        "duration": 0.26,
    }
    return RequestRecord(**(fields | changes))


class Clock:
    """A clock that goes on when it is told to, or by `step` with each reading."""

    def __init__(self, at=0.0, step=0.0):
        self.at, self.step = at, step

    def __call__(self):
        self.at += self.step
        return self.at


class Counting:
    """In the place of random.getrandbits: 1, 2, 3, ..."""

    def __init__(self):
        self.last = 0

    def __call__(self, bits):
        self.last += 1
        return self.last


LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def read_exposition(text):
    """Prometheus text 0.0.4, read strictly: ({(name, labels): value}, {name: type}).

    Written from the format's description and not from our writer. Raises AssertionError where a line is not valid.
    """
    assert text.endswith("\n")
    samples, kinds, current = {}, {}, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ")[2]
            assert current not in kinds, f"{current} comes twice"
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current
            assert kind in {"counter", "gauge", "histogram"}
            kinds[name] = kind
        else:
            name, labels, value = LINE.fullmatch(line).groups()
            family = re.sub(r"_(bucket|sum|count)$", "", name) if kinds[current] == "histogram" else name
            assert family == current, f"{name} stands below {current}"
            key = (name, frozenset(_labels(labels)))
            assert key not in samples, f"{key} comes twice"
            samples[key] = float(value.replace("Inf", "inf"))
    return samples, kinds


def _labels(text):
    at = 0
    while text and at < len(text):
        found = LABEL.match(text, at)
        assert found, f"not labels: {text[at:]}"
        yield found[1], re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), found[2])
        at = found.end()


def sample(samples, name, **labels):
    return samples.get((name, frozenset(labels.items())), math.nan)
