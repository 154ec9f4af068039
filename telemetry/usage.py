"""Measuring an answer while it goes by: when tokens came, how many, and what the engine says they cost."""

from collections.abc import Callable

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the engine counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None  # of the prompt, found in the KV cache; None: the engine does not say


class Meter:
    """Notes when tokens pass. One for each request; told by the backend, read when the request is recorded."""

    __slots__ = ("_clock", "chunks", "finished", "first_byte_at", "first_token_at", "last_token_at", "size", "usage")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.size = 0  # bytes from upstream
        self.chunks = 0
        self.first_byte_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.usage: Usage | None = None
        self.finished = False  # a terminal frame was seen: [DONE], a finish_reason, or a whole JSON document

    def chunk(self, size: int, *, token: bool) -> None:
        """A piece of the answer came; `token`: it is past the first non-empty content, reasoning or tool delta."""
        now = self._clock()
        self.size += size
        self.chunks += 1
        if self.first_byte_at is None:
            self.first_byte_at = now
        if token:
            if self.first_token_at is None:
                self.first_token_at = now
            self.last_token_at = now

    def restart(self) -> None:
        """Forget what a failed attempt left behind; called before the next replica is tried."""
        self.__init__(self._clock)  # type: ignore[misc]

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds a token after the first: (last - first) / (tokens - 1), tokens from usage, never from chunks."""
        if self.usage is None or self.first_token_at is None or self.last_token_at is None:
            return None
        gaps = self.usage.completion_tokens - 1
        return (self.last_token_at - self.first_token_at) / gaps if gaps > 0 else None
