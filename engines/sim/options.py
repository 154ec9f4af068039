"""How one simulated server is set up."""

from typing import Literal

import msgspec

DialectName = Literal["vllm", "tgi", "trtllm", "llamacpp"]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Field names are the command's options with `_` for `-`; rates of 0 mean no time at all."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: the system chooses
    dialect: DialectName = "vllm"
    model: str = "sim"
    seed: int = 0  # other seed, other words
    slots: int = 4
    prefill_rate: float = 2000.0  # prompt tokens a second, all requests together
    decode_rate: float = 50.0  # tokens a second of one request
    decode_total: float = 0.0  # tokens a second of all requests together; 0: batching is free
    batch_tokens: int = 512  # prompt tokens of one step
    tokens_per_step: int = 1  # more than 1: several tokens a chunk, as with speculation
    kv_blocks: int = 4096
    block_tokens: int = 16
    context: int = 0  # longest prompt and answer in tokens; 0: what the cache holds, at most 32768
    answer_tokens: int = 0  # an answer ends by itself after so many; 0: max_tokens decides, 128 without it
    max_queue: int = -1  # requests that may wait before overload is answered; -1: the engine's default
    dimensions: int = 64  # of an embedding
    embeddings: bool = True  # llama.cpp answers 501 without its option
    api_key: str = ""
    start_delay: float = 0.0  # seconds of 503 on /health and everywhere else: the model loads
    keep_alive: float = 0.0  # seconds until an idle connection is closed; 0: never
    drain: float = 0.0  # seconds that running requests get at SIGTERM
    fault: str = ""
    keep: int = 50  # requests that /sim/state remembers
    kv_events: str = ""  # ZMQ endpoint, e.g. tcp://127.0.0.1:5557
    kv_topic: str = ""
    fastest: bool = False  # fixed bytes, no model of time
    chunks: int = 64  # of a stream in the fastest mode
    chunk_interval: float = 0.0  # seconds between them; 0: all at once

    @property
    def longest(self) -> int:
        room = self.kv_blocks * self.block_tokens
        return min(self.context, room) if self.context else min(32768, room)
