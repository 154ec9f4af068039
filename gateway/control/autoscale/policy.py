"""How many replicas a pool should have: a pure function of what was seen, with the reason in words and numbers."""

from math import ceil
from typing import Literal

import msgspec

from gateway.control.autoscale.signal import Seen

Cause = Literal["steady", "unknown", "limits", "wake", "demand rose", "kv cache", "demand fell", "idle"]


class Limits(msgspec.Struct, frozen=True):
    """What a pool may be scaled to, and how patiently."""

    minimum: int = 0
    maximum: int = 1
    slots: int = 4  # requests one replica works on at once
    idle_seconds: float = 300.0  # without any demand until minimum 0 really becomes 0
    calm_seconds: float = 60.0  # the peak of this long decides about shrinking; also the pause between two steps down
    stale_seconds: float = 5.0  # a report older than this says nothing any more
    shrink_below: float = 0.7  # share of the slots that may be in use after a replica has gone
    kv_high: float = 0.9  # share of the KV cache above which one more replica is wanted
    kv_low: float = 0.75  # ... and that may be reached after a replica has gone


class Decision(msgspec.Struct, frozen=True):
    """A number of replicas and why; `cause` is for counting, `reason` for reading."""

    replicas: int
    cause: Cause
    reason: str


def decide(current: int, seen: Seen | None, limits: Limits, now: float, changed_at: float = float("-inf")) -> Decision:
    """The replicas wanted, given `current` wanted before and the time of the last change.

    Grows at once to what the present demand fills; shrinks one at a time, on the peak of the calm window
    and only if that peak fits what is left; goes to zero after `idle_seconds` without demand. Without a fresh
    report nothing is known, so nothing changes but what the limits demand.
    """
    if current < limits.minimum:
        return Decision(limits.minimum, "limits", f"the minimum is {limits.minimum}")
    if current > limits.maximum:
        return Decision(limits.maximum, "limits", f"the maximum is {limits.maximum}")
    if seen is None:
        return Decision(current, "unknown", "no gateway has reported demand yet; holding")
    if now - seen.at > limits.stale_seconds:
        return Decision(current, "unknown", f"the last report is {now - seen.at:.1f} s old; holding")
    if current == 0:
        return _wake(seen, limits)
    return _grown(current, seen, limits) or _shrunk(current, seen, limits, now, changed_at) or _steady(current, seen)


def _wake(seen: Seen, limits: Limits) -> Decision:
    wanted = _bounded(ceil(seen.demand / limits.slots), limits)
    if wanted == 0:
        why = "no demand" if seen.demand == 0 else f"{counted(seen.demand)}, but the maximum is 0"
        return Decision(0, "steady", why)
    return Decision(wanted, "wake", f"{counted(seen.demand)} came while it was at zero")


def _grown(current: int, seen: Seen, limits: Limits) -> Decision | None:
    wanted = _bounded(ceil(seen.demand / limits.slots), limits)
    if wanted > current:
        words = f"{seen.running} running and {seen.waiting} waiting on {current * limits.slots} slots"
        return Decision(wanted, "demand rose", words)
    if seen.kv_used is not None and seen.kv_used > limits.kv_high and current < limits.maximum and seen.demand:
        words = f"KV cache {seen.kv_used:.0%} full, over {limits.kv_high:.0%}"
        return Decision(current + 1, "kv cache", words)
    return None


def _shrunk(current: int, seen: Seen, limits: Limits, now: float, changed_at: float) -> Decision | None:
    if current <= limits.minimum:
        return None
    idle = now - seen.busy_at
    if limits.minimum == 0 and idle >= limits.idle_seconds and seen.demand == 0:
        return Decision(0, "idle", f"no request for {idle:.0f} s")
    fewer = current - 1
    if fewer == 0 or now - max(seen.since, changed_at) < limits.calm_seconds:
        return None
    if seen.peak > limits.shrink_below * fewer * limits.slots:
        return None
    kv_after = seen.kv_used * current / fewer if seen.kv_used is not None else 0.0
    if kv_after > limits.kv_low:
        return None
    words = (
        f"at most {counted(seen.peak)} in {limits.calm_seconds:.0f} s fit the {fewer * limits.slots} slots of {fewer}"
    )
    return Decision(fewer, "demand fell", words)


def _steady(current: int, seen: Seen) -> Decision:
    return Decision(current, "steady", f"{seen.running} running and {seen.waiting} waiting on {current}")


def counted(requests: int) -> str:
    return "1 request" if requests == 1 else f"{requests:,} requests"


def _bounded(replicas: int, limits: Limits) -> int:
    return min(max(replicas, limits.minimum), limits.maximum)
