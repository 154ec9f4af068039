"""Telling routers what the KV cache holds: over ZMQ as vLLM does, and as the list TensorRT-LLM hands out."""

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import msgspec

from engines.sim.cache import Cleared, Event, Removed, Stored


class MissingDependency(Exception):
    """The option needs a package that is not installed; the message names it."""


class KvEvents:
    """Collects the cache's events; `flush` publishes what came since the last one as one batch."""

    def __init__(self, block_tokens: int, capacity: int, publish: Callable[[bytes], None] | None = None) -> None:
        self._block_tokens = block_tokens
        self._publish = publish
        self._batch: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        first = {"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [capacity, 0]}}
        self._polled: deque[dict[str, Any]] = deque([first], maxlen=1024)  # TensorRT-LLM's event_buffer_max_size

    def note(self, event: Event) -> None:
        if self._publish is not None:
            self._batch.append(_vllm(event, self._block_tokens))
        data = _trtllm(event, self._block_tokens)
        if data is not None:
            self._polled.append({"event_id": next(self._numbers), "data": data})

    def flush(self, now: float) -> None:
        """Publish `[ts, events, data_parallel_rank]` (vLLM's EventBatch, array-like); `now`: Unix seconds."""
        if self._batch and self._publish is not None:
            self._publish(msgspec.msgpack.encode([now, self._batch, 0]))
            self._batch = []

    def poll(self) -> list[dict[str, Any]]:
        """What POST /kv_cache_events answers: the events since the last call, each told once."""
        events = list(self._polled)
        self._polled.clear()
        return events


class ZmqPublisher:
    """Binds a PUB socket and sends `[topic, sequence number (8 bytes, big-endian), payload]`. A context manager."""

    def __init__(self, endpoint: str, topic: str) -> None:
        """Raises MissingDependency without pyzmq."""
        try:
            import zmq  # noqa: PLC0415  optional: only this option needs it
        except ImportError as error:
            raise MissingDependency("--kv-events needs ZeroMQ: pip install pyzmq") from error
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._topic = topic.encode()
        self._sequence = itertools.count()

    def __call__(self, payload: bytes) -> None:
        self._socket.send_multipart((self._topic, next(self._sequence).to_bytes(8, "big"), payload))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()


def _vllm(event: Event, block_tokens: int) -> dict[str, Any]:
    """A map with `type`, as at vLLM 0.33."""
    match event:
        case Stored(hashes, parent, tokens):
            return {
                "type": "BlockStored",
                "block_hashes": list(hashes),
                "parent_block_hash": parent,
                "token_ids": list(tokens),
                "block_size": block_tokens,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
        case Removed(hashes):
            return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}
        case Cleared():
            return {"type": "AllBlocksCleared"}


def _trtllm(event: Event, block_tokens: int) -> dict[str, Any] | None:
    match event:
        case Stored(hashes, parent, tokens):
            blocks = [
                {
                    "type": "stored_block",
                    "block_hash": one,
                    "tokens": [
                        {"type": "unique_token", "token_id": token, "token_extra_id": 0}
                        for token in tokens[at * block_tokens : (at + 1) * block_tokens]
                    ],
                    "cache_level": 0,
                    "priority": 35,
                }
                for at, one in enumerate(hashes)
            ]
            return {"type": "stored", "parent_hash": parent, "blocks": blocks}
        case Removed(hashes):
            return {"type": "removed", "block_hashes": list(hashes)}
        case Cleared():
            return None  # TensorRT-LLM removes block by block and has no word for this
