"""Turning what Litestar itself refuses (no such route, wrong method) into OpenAI-shaped errors: the only such place."""

import logging
from typing import Any

from litestar import Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from gateway.serve.errors import ErrorBody, ErrorDetail, GatewayError, MethodNotAllowed, NotFound

_log = logging.getLogger("turnout.api")
_Request = Request[Any, Any, State]


def tell(request: _Request, error: Exception) -> Response[ErrorBody]:
    """Any exception to the answer a client gets; unexpected ones are logged and told without detail."""
    if isinstance(error, GatewayError):
        return Response(error.body, status_code=error.status, headers=error.headers)
    if isinstance(error, HTTPException):
        return _http(request, error)
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return Response(GatewayError("The gateway failed; see its log.").body, status_code=500)


def _http(request: _Request, error: HTTPException) -> Response[ErrorBody]:
    path = request.url.path
    told: GatewayError
    match error.status_code:
        case 404:
            told = NotFound(f"There is no {path} here. The routes are in the reference, docs/reference/http.md.")
        case 405:
            told = MethodNotAllowed(f"{path} does not take {request.method}.")
        case status:
            kind = "invalid_request_error" if status < 500 else "server_error"  # noqa: PLR2004
            return Response(ErrorBody(ErrorDetail(error.detail, kind, None)), status_code=status)
    return Response(told.body, status_code=told.status, headers=error.headers)
