"""The console's pages and what they ask for: sign-in, overview, playground, the live stream, static files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from jinja2 import Environment, FileSystemLoader, select_autoescape
from litestar import MediaType, Request, Response, Router, asgi, get, post
from litestar.datastructures import CacheControlHeader, Cookie, State
from litestar.enums import RequestEncodingType
from litestar.handlers import ASGIRouteHandler, HTTPRouteHandler
from litestar.params import Body, FromQuery
from litestar.response import Redirect
from litestar.static_files import create_static_files_router  # pyright: ignore[reportUnknownVariableType]  untyped parts
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.console.live import Live, send_pictures
from gateway.console.session import COOKIE, Door, from_here
from gateway.serve.catalog import Catalog

FOLDER: Final = Path(__file__).parent
_Request = Request[Any, Any, State]
_Form = Annotated[dict[str, str], Body(media_type=RequestEncodingType.URL_ENCODED)]

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",  # stricter ones make browsers hide a form's own Origin
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


# (element, name, unit, what it means): the figures of the overview, all of this gateway's last minute
FIGURES: Final = (
    ("requests", "Requests", "/s", "Requests finished in a second, mean of the last minute"),
    ("ttft", "TTFT", "ms", "Time to first token, waiting included: median, and 95th percentile, last minute"),
    ("tpot", "TPOT", "ms", "Time per output token, from usage: median, and 95th percentile, last minute"),
    ("output", "Output", "tok/s", "Output tokens in a second, all users together, mean of the last minute"),
    ("user", "Each user", "tok/s", "Output tokens in a second that one user sees, median of the last minute"),
    (
        "errors",
        "Errors",
        "%",
        "Share of the last minute's requests that failed (5xx) or broke off; a refusal (4xx) is none",
    ),
    ("hit", "Prefix hit", "%", "Share of prompt tokens that a replica's KV cache was believed to hold, last minute"),
    ("removed", "Compressed", "tok/s", "Prompt tokens that compression removed in a second, mean of the last minute"),
)


class Refusal(msgspec.Struct, frozen=True):
    """What pages' own requests are told when they are not answered."""

    status: int
    message: str

    def response(self) -> Response[Any]:
        return Response({"error": {"message": self.message}}, status_code=self.status, headers=HEADERS)

    async def send(self, send: Send) -> None:
        """The same where there is only ASGI."""
        body = msgspec.json.encode({"error": {"message": self.message}})
        head = {**HEADERS, "content-type": "application/json", "content-length": str(len(body))}
        await send({"type": "http.response.start", "status": self.status, "headers": _raw(head)})
        await send({"type": "http.response.body", "body": body, "more_body": False})


STRANGER: Final = Refusal(401, "Sign in at /console first.")
FOREIGN: Final = Refusal(403, "This request came from a page of another site.")


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


class ChatModel(msgspec.Struct, frozen=True):
    """A name that the playground may ask for."""

    id: str
    chat: bool


class ChatModels(msgspec.Struct, frozen=True):
    data: list[ChatModel]


class Console:
    """What the pages share. `chat` answers a chat request that carries `key`, the console's own."""

    def __init__(
        self, door: Door, live: Live, catalog: Callable[[], Catalog], chat: ASGIApp, key: str, version: str
    ) -> None:
        self.door = door
        self.live = live
        self.catalog = catalog
        self.chat = chat
        self.key = key
        self.version = version
        self._templates = Environment(loader=FileSystemLoader(FOLDER / "templates"), autoescape=select_autoescape())

    def page(self, name: str, *, status: int = 200, **values: object) -> Response[str]:
        text = self._templates.get_template(f"{name}.html").render(page=name, version=self.version, **values)
        return Response(text, media_type=MediaType.HTML, status_code=status, headers=HEADERS)

    def login(self, *, wrong: bool = False) -> Response[str]:
        return self.page("login", status=401 if wrong else 200, wrong=wrong, shut=self.door.shut)

    def knows(self, request: _Request) -> bool:
        return self.door.knows(request.cookies.get(COOKIE))

    def let_in(self, request: _Request) -> Response[Any]:
        """To the overview, with the cookie. `secure` where the browser came by TLS."""
        cookie = Cookie(
            COOKIE,
            value=self.door.cookie,
            path="/console",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
            max_age=30 * 24 * 3600,
        )
        return Redirect("/console", status_code=303, cookies=[cookie], headers=HEADERS)


def console_routes(console: Console) -> list[Any]:
    return [*_pages(console), *_sessions(console), *_playground(console), _stream(console), _static()]


def _pages(console: Console) -> list[HTTPRouteHandler]:
    @get("/console", include_in_schema=False, sync_to_thread=False)
    def overview(request: _Request, token: FromQuery[str | None] = None) -> Response[Any]:
        if token is not None and (console.door.opens(token) or console.knows(request)):
            return console.let_in(request)  # and the token out of the address bar
        if not console.knows(request):
            return console.login(wrong=token is not None)
        return console.page("overview", figures=FIGURES)

    @get("/console/playground", include_in_schema=False, sync_to_thread=False)
    def playground(request: _Request) -> Response[Any]:
        return console.page("playground") if console.knows(request) else console.login()

    @get("/", include_in_schema=False, sync_to_thread=False)
    def start() -> Response[Any]:
        return Redirect("/console", status_code=302, headers=HEADERS)

    return [start, overview, playground]


def _sessions(console: Console) -> list[HTTPRouteHandler]:
    @post("/console/login", include_in_schema=False, sync_to_thread=False)
    def login(request: _Request, data: _Form) -> Response[Any]:
        if not _ours(request):
            return FOREIGN.response()
        if console.door.opens(data.get("token", "").strip()):
            return console.let_in(request)
        return console.login(wrong=True)

    @post("/console/logout", include_in_schema=False, sync_to_thread=False)
    def logout(request: _Request) -> Response[Any]:
        if not _ours(request):
            return FOREIGN.response()
        gone = Cookie(COOKIE, value="", path="/console", httponly=True, samesite="strict", max_age=0)
        return Redirect("/console", status_code=303, cookies=[gone], headers=HEADERS)

    return [login, logout]


def _playground(console: Console) -> list[Any]:
    @get("/console/v1/models", include_in_schema=False, sync_to_thread=False)
    def models(request: _Request) -> Response[Any]:
        if not console.knows(request):
            return STRANGER.response()
        catalog = console.catalog()
        pools = [ChatModel(pool.name, pool.kind == "chat") for pool in catalog.pools.values()]
        return Response(
            ChatModels([*(ChatModel(name, chat=True) for name in catalog.aliases), *pools]), headers=HEADERS
        )

    @asgi("/console/v1/chat/completions", copy_scope=True)
    async def chat(scope: Scope, receive: Receive, send: Send) -> None:
        """The gateway's own chat route under the console's key, for our own page alone."""
        refusal = _why_not(console, Request(scope))
        if refusal is not None:
            await refusal.send(send)
            return
        kept = [(name, value) for name, value in scope["headers"] if name not in (b"authorization", b"cookie")]
        scope["headers"] = [*kept, (b"authorization", b"Bearer " + console.key.encode())]
        await console.chat(scope, receive, send)

    return [models, chat]


def _why_not(console: Console, request: _Request) -> Refusal | None:
    """The cookie is same-site already; that no foreign page asks is checked a second and a third way."""
    if not console.knows(request):
        return STRANGER
    if not _ours(request):
        return FOREIGN
    if request.content_type[0] != "application/json":
        return Refusal(415, "The playground sends application/json.")
    return None


def _ours(request: _Request) -> bool:
    return from_here(request.headers.get("origin"), request.headers.get("host"))


def _stream(console: Console) -> ASGIRouteHandler:
    headers = _raw({**HEADERS, "content-type": "text/event-stream", "x-accel-buffering": "no"})

    @asgi("/console/live", copy_scope=True)
    async def live(scope: Scope, receive: Receive, send: Send) -> None:
        request: _Request = Request(scope)
        if request.method != "GET" or not console.knows(request):
            await (STRANGER if request.method == "GET" else Refusal(405, "Use GET.")).send(send)
            return
        async with console.live.watch() as page:
            await send_pictures(page, headers, receive, send)

    return live


def _static() -> Router:
    return create_static_files_router(
        path="/console/static",
        directories=[FOLDER / "static"],
        include_in_schema=False,
        cache_control=CacheControlHeader(no_cache=True),
        after_request=_harden,
    )


def _harden(response: Response[Any]) -> Response[Any]:
    for name in ("content-security-policy", "x-content-type-options"):
        response.headers[name] = HEADERS[name]
    return response
