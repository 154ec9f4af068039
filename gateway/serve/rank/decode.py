"""What generating the answer costs."""

from gateway.serve.catalog import Pool


def decode(pool: Pool, output_tokens: float) -> float:
    """price x tokens / rate: seconds of a slot, priced."""
    return pool.price * output_tokens / pool.decode_rate
