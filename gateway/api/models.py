"""GET /v1/models: the names a key may ask for."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from gateway.api.routes import check_single
from gateway.serve.authenticate import authenticate
from gateway.serve.catalog import Caller, Catalog
from gateway.serve.errors import ModelNotFound


class Model(msgspec.Struct, frozen=True):
    """OpenAI's model object; `created` is 0: a pool has no birthday."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "turnout"


class Models(msgspec.Struct, frozen=True):
    data: list[Model]
    object: Annotated[str, msgspec.Meta(description="always list")] = "list"


def model_routes(catalog: Callable[[], Catalog]) -> list[HTTPRouteHandler]:
    @get("/v1/models", summary="The models this key may use", sync_to_thread=False)
    def models(request: Request[Any, Any, State]) -> Models:
        now = catalog()
        caller = _caller(now, request)
        return Models([Model(name) for name in _names(now, caller)])

    @get("/v1/models/{name:str}", summary="One model", sync_to_thread=False)
    def model(request: Request[Any, Any, State], name: FromPath[str]) -> Model:
        now = catalog()
        caller = _caller(now, request)
        if name not in set(_names(now, caller)):
            raise ModelNotFound(f"There is no model {name!r} for this key.", param="model")
        return Model(name)

    return [models, model]


def _caller(catalog: Catalog, request: Request[Any, Any, State]) -> Caller:
    check_single(request.scope["headers"])
    return authenticate(catalog, request.headers.get("authorization"))


def _names(catalog: Catalog, caller: Caller) -> Iterator[str]:
    for name in (*catalog.aliases, *catalog.pools):
        if caller.may_use(name):
            yield name
