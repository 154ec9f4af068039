"""A model server without a model: slots, prefill and decode speed, a paged KV cache, and faults to order."""
