"""Counting requests in flight in the one way that cannot leak: a scope."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from backends.types import Replica
from gateway.serve.catalog import Live


def _nothing() -> None:
    """For a lease nobody waits for."""


@contextmanager
def lease(live: Live, replica: Replica, released: Callable[[], object] = _nothing) -> Generator[None]:
    """One request in flight on `replica`, from entry to exit.

    Counted by id and incarnation: when the process behind an id was replaced, what its old one still holds open
    says nothing of the new one. `live.inflight` shows the incarnation that was leased last. `released` is called
    after the count went down: it tells the pool's queue that a slot may be free.
    """
    key = (replica.id, replica.incarnation)
    live.leases[key] = live.leases.get(key, 0) + 1
    live.incarnations[replica.id] = replica.incarnation
    _show(live, replica)
    try:
        yield
    finally:
        left = live.leases[key] - 1
        if left:
            live.leases[key] = left
        else:
            del live.leases[key]
        _show(live, replica)
        released()


def _show(live: Live, replica: Replica) -> None:
    """Bring `inflight` up to date, unless another incarnation has taken the id over."""
    if live.incarnations.get(replica.id) != replica.incarnation:
        return
    count = live.leases.get((replica.id, replica.incarnation), 0)
    if count:
        live.inflight[replica.id] = count
    else:
        live.inflight.pop(replica.id, None)
        del live.incarnations[replica.id]
