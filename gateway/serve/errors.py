"""What a client can be told. Every class here is one row of docs/reference/errors.md."""

from math import ceil

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    code: str | None
    param: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


class GatewayError(Exception):
    """Something went wrong inside the gateway that is nobody's request's fault."""

    status: int = 500
    type: str = "server_error"
    code: str | None = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after = retry_after  # seconds

    @property
    def headers(self) -> dict[str, str]:
        """What an answer with this error carries beside its body; lower-case names."""
        told: dict[str, str] = {}
        if self.retry_after is not None:
            told["retry-after"] = str(max(1, ceil(self.retry_after)))
        if self.status == 401:  # noqa: PLR2004
            told["www-authenticate"] = "Bearer"
        if self.status == 405:  # noqa: PLR2004
            told["allow"] = "POST"
        return told

    @property
    def body(self) -> ErrorBody:
        return ErrorBody(ErrorDetail(str(self), self.type, self.code, self.param))


class BadRequest(GatewayError):
    """The request could not be understood: not JSON, or a field of the wrong type."""

    status, type, code = 400, "invalid_request_error", "invalid_request"


class ContextExceeded(GatewayError):
    """The prompt is longer than any pool that could answer it allows."""

    status, type, code = 400, "invalid_request_error", "context_length_exceeded"


class Unauthenticated(GatewayError):
    """No key, or one that is not known."""

    status, type, code = 401, "authentication_error", "invalid_api_key"


class Forbidden(GatewayError):
    """The key may not use this model."""

    status, type, code = 403, "permission_error", "model_not_allowed"


class NotFound(GatewayError):
    """No such route."""

    status, type, code = 404, "invalid_request_error", "not_found"


class ModelNotFound(GatewayError):
    """No pool or alias has this name, or none that can do this operation."""

    status, type, code = 404, "invalid_request_error", "model_not_found"


class MethodNotAllowed(GatewayError):
    """The route exists, the method does not."""

    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class RequestTimeout(GatewayError):
    """The client stopped half-way through its request."""

    status, type, code = 408, "invalid_request_error", "request_timeout"


class TooLarge(GatewayError):
    """The body is larger than the gateway accepts."""

    status, type, code = 413, "invalid_request_error", "request_too_large"


class HeadTooLarge(GatewayError):
    """The request line and headers are larger than the gateway accepts."""

    status, type, code = 431, "invalid_request_error", "headers_too_large"


class RateLimited(GatewayError):
    """The key's own limit is reached: requests or tokens a minute, or requests at once."""

    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"


class QueueFull(GatewayError):
    """The pool's queue is full, or the request waited in it as long as it may."""

    status, type, code = 503, "server_error", "queue_full"


class NoReplica(GatewayError):
    """No replica of any pool that could answer is ready, and none can be started in time."""

    status, type, code = 503, "server_error", "no_replica_available"


class UpstreamFailed(GatewayError):
    """The model server could not answer."""

    status, type, code = 502, "server_error", "upstream_failed"


class StreamIncomplete(GatewayError):
    """The model server broke off, or stopped without a terminal frame: what came is not whole."""

    status, type, code = 502, "server_error", "stream_incomplete"


class UpstreamTimeout(GatewayError):
    """The model server took the request and went silent."""

    status, type, code = 504, "server_error", "upstream_timeout"


class UpstreamRefused(GatewayError):
    """The model server answered with an error of its own; status, type and code are the server's."""

    status, type, code = 400, "invalid_request_error", None

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str | None = None,  # noqa: A002  OpenAI's own field name
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.type = type or ("invalid_request_error" if status < 500 else "server_error")  # noqa: PLR2004
        self.code = code
