"""The vocabulary for talking to a model server: who it is, what we ask, what comes back."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, NewType, Protocol

import msgspec
from typing_extensions import override

from telemetry.usage import Meter

ReplicaId = NewType("ReplicaId", str)

Operation = Literal["chat", "completions", "embeddings"]

PATHS: Mapping[Operation, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
}


class Access(msgspec.Struct, frozen=True):
    """How to be let in by the servers of one pool. The key is never shown, logged or stored in a row."""

    key: str | None = None
    ca: str | None = None  # path of a PEM bundle; None: the system's

    @override
    def __repr__(self) -> str:
        return f"Access(key={'set' if self.key else None}, ca={self.ca!r})"


class Replica(msgspec.Struct, frozen=True):
    """One running model server. `incarnation` changes when the process behind the same id does."""

    id: ReplicaId
    url: str  # scheme://host:port, no trailing slash
    served_model: str
    slots: int = 1
    incarnation: str = ""
    access: Access = Access()


class Load(msgspec.Struct, frozen=True):
    """What a server says of itself: requests running and waiting, share of the KV cache in use (0..1)."""

    running: int = 0
    waiting: int = 0
    kv_used: float | None = None  # None: the server does not say


class Call(msgspec.Struct, frozen=True):
    """One request as the gateway wants it made. `body` is JSON whose model is already the served one."""

    operation: Operation
    body: bytes
    stream: bool = False  # what the client asked for
    wants_usage: bool = False  # the client asked for the usage chunk of a stream
    headers: Mapping[str, str] = {}  # already on the allow-list: traceparent, tracestate
    first_byte_timeout: float = 120.0  # seconds until the head and the first body byte
    idle_timeout: float = 60.0  # seconds between body bytes

    @override
    def __repr__(self) -> str:
        """Never the text of a prompt: this ends up in logs and tracebacks."""
        return f"Call({self.operation}, {len(self.body)} bytes)"


class Reply(msgspec.Struct, frozen=True):
    """An answer whose head has arrived and whose body is still on its way.

    `body` yields what the client is to get: whole events of a stream, or a JSON document. It raises
    `Interrupted` where the server broke off.
    """

    status: int
    headers: Mapping[str, str]  # lower-case names, already on the allow-list
    body: AsyncIterator[bytes]


class Backend(Protocol):
    """How to reach one kind of model server (TensorRT-LLM, TGI, llama.cpp, vLLM, ...)."""

    def send(self, replica: Replica, call: Call, meter: Meter) -> AbstractAsyncContextManager[Reply]:
        """Open a request and yield its reply; leaving the context ends the request upstream.

        `meter` is told of every chunk from upstream as it comes. Raises `BackendError` before the reply is yielded;
        `Refused` carries the server's own error.
        """
        ...

    async def probe(self, replica: Replica) -> Load | None:
        """Health and load in one call; None: alive but not ready (still loading). Raises `Unreachable`."""
        ...

    async def served_models(self, replica: Replica) -> tuple[str, ...]:
        """The names this server answers to, the first one its own. Raises `BackendError`."""
        ...
