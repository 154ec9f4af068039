"""What reading the prompt costs, less what a replica's KV cache already holds."""

from gateway.serve.catalog import Pool


def prefill(pool: Pool, tokens: float, cached: float) -> float:
    """price x uncached tokens / rate: seconds of a slot, priced. More cached never costs more."""
    return pool.price * max(0.0, tokens - max(0.0, cached)) / pool.prefill_rate
