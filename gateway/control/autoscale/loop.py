"""Applying the policy: demand is read, each pool's number decided, and every change kept with its reason."""

import logging
from collections.abc import Mapping, Sequence

from backends.types import Load
from gateway.control.autoscale.policy import Limits, decide
from gateway.control.autoscale.signal import Window
from gateway.db.engine import Database
from gateway.db.repositories import decisions
from gateway.db.rows import Demand, ScaleDecision
from gateway.settings import PoolSettings


def limits_of(entry: PoolSettings) -> Limits:
    return Limits(
        minimum=entry.minimum, maximum=entry.maximum, slots=entry.slots_each, idle_seconds=max(0.0, entry.idle_seconds)
    )


class _Scaled:
    """One pool's number of replicas, and what it was decided on."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.wanted = 0
        self.changed_at = float("-inf")
        self.window = Window(calm_seconds=limits.calm_seconds, stale_seconds=limits.stale_seconds)


class Scaler:
    """Holds how many replicas each pool is to have. Nobody else chooses that number."""

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._scaled = {pool: _Scaled(given) for pool, given in limits.items()}
        self._log = logging.getLogger("turnout.autoscale")

    def wanted(self, pool: str) -> int:
        return self._scaled[pool].wanted

    async def step(self, db: Database, pool: str, demand: Demand, loads: Sequence[Load], now: float) -> int:
        """Decide for one pool; a change is a row before it is acted upon. Raises Unavailable.

        `loads` are those of its ready replicas; `now` in Unix seconds.
        """
        scaled = self._scaled[pool]
        if demand.seen:
            _report(scaled.window, demand, loads, now)
        decision = decide(scaled.wanted, scaled.window.seen, scaled.limits, now, scaled.changed_at)
        if decision.replicas != scaled.wanted:
            row = ScaleDecision(
                at=now, pool=pool, before=scaled.wanted, after=decision.replicas, reason=decision.reason
            )
            await decisions.add(db, row)
            self._log.info("%s: %d -> %d replicas: %s", pool, row.before, row.after, row.reason)
            scaled.wanted, scaled.changed_at = decision.replicas, now
        return scaled.wanted


def _report(window: Window, demand: Demand, loads: Sequence[Load], now: float) -> None:
    """Engines may have work from others than our gateways: the larger count of the two is the true one."""
    at_engines = sum(load.running + load.waiting for load in loads)
    kv = [load.kv_used for load in loads if load.kv_used is not None]
    window.report(
        now,
        running=max(demand.running, at_engines),
        waiting=demand.waiting,
        last_request_at=demand.last_request_at or 0.0,
        kv_used=sum(kv) / len(kv) if kv else None,
    )
