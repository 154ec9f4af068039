"""What waking a pool at zero replicas costs."""

from gateway.serve.catalog import Pool


def cold_start(pool: Pool, waiting: int, output_tokens: float) -> float:
    """Seconds until the first replica is up, and then those who wait for it already."""
    return pool.cold_start + waiting * output_tokens / pool.decode_rate
