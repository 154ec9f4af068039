"""What is kept of one finished request: numbers and names, never prompt text."""

from typing import Literal

import msgspec

Outcome = Literal["ok", "error", "cancelled", "interrupted"]


class RequestRecord(msgspec.Struct, frozen=True):
    """One request from its first byte to its last. Times in seconds; `at` is wall-clock (Unix)."""

    id: str
    at: float
    operation: str  # chat | completions | embeddings
    caller: str  # the key's name
    model: str  # as the client asked
    pool: str = ""
    replica: str = ""
    route: str = ""  # forced | rule | gain=0.23
    status: int = 200
    outcome: Outcome = "ok"
    error: str = ""  # the code of the error told to the client
    stream: bool = False
    form: str = "as is"
    prompt_bytes: int = 0
    sent_bytes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prefix_hit: float = 0.0  # share of the prompt the index expected in the replica's cache
    queued: float = 0.0
    decided: float = 0.0  # seconds of CPU-side work before sending: facts and decision
    ttft: float | None = None
    tpot: float | None = None
    duration: float = 0.0
    because: dict[str, float] = {}  # the terms of the chosen plan's cost
    traceparent: str = ""
    attempts: int = 1
