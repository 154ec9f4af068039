"""What can go wrong between the gateway and a model server, and what may be tried next."""


class BackendError(Exception):
    """Base of everything a backend raises. `retryable`: another replica may be tried without harm."""

    retryable = False


class Unreachable(BackendError):
    """No connection was made, so the request never started: another replica may answer."""

    retryable = True


class Overloaded(BackendError):
    """The server said 429 or 503: it did not start; its Retry-After (seconds) is kept for the client."""

    retryable = True

    def __init__(self, message: str, *, status: int = 503, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Broken(BackendError):
    """The connection broke after the request had gone out and before the head came back.

    The server may be working on it, so it is retried only where the connection had been idle in
    the pool and not one byte came back: then the server most likely closed it before it read anything.
    """

    def __init__(self, message: str, *, was_idle: bool) -> None:
        super().__init__(message)
        self.retryable = was_idle


class TimedOut(BackendError):
    """The server took the request and went silent: it may still be working on it."""


class Refused(BackendError):
    """The server answered with an error of its own (4xx or 5xx): told to the client in OpenAI's shape.

    `code` and `type` are the server's where it gave them, else None.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str | None = None,  # noqa: A002  OpenAI's own field name
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.code = code
        self.param = param


class Interrupted(BackendError):
    """The answer broke off (or never reached a terminal frame) after its head had arrived.

    `told`: the server's own error event has been passed on, so the client knows.
    """

    def __init__(self, message: str, *, told: bool = False) -> None:
        super().__init__(message)
        self.told = told


class Stalled(Interrupted):
    """The answer had begun and then nothing came for longer than the idle timeout."""
