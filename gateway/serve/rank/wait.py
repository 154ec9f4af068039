"""How long a request would wait on a replica for those before it."""

from backends.types import Replica
from gateway.serve.catalog import Live, Pool


def wait(pool: Pool, replica: Replica, live: Live, output_tokens: float) -> float:
    """Seconds: one answer's decode time x requests before this one / slots.

    Before it are those in flight from here or, where the server says of more, those it runs and holds back,
    and this replica's even share of the pool's queue. A replica with free slots still costs a share of one
    answer, since slots share one machine.
    """
    load = live.loads.get(replica.id)
    before = live.inflight.get(replica.id, 0)
    if load is not None:
        before = max(before, load.running + load.waiting)
    queued = live.waiting.get(pool.name, 0) / max(1, len(pool.replicas))
    return (before + queued) / replica.slots * output_tokens / pool.decode_rate
