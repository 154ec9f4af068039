"""The simulated model server: which path does what, and how it starts and stops."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any

from engines.sim import generate, pages
from engines.sim.dialects import Refused
from engines.sim.machine import Machine
from engines.sim.options import DialectName, Options
from engines.sim.wire import Connection, Request, Wire

Route = Callable[[Machine, Request, Wire], Awaitable[None]]


class Server:
    """A machine behind a port. Use `serve`."""

    def __init__(self, machine: Machine, url: str) -> None:
        self.machine = machine
        self.url = url

    def state(self) -> dict[str, Any]:
        """The same as GET /sim/state."""
        return self.machine.state()


@asynccontextmanager
async def serve(options: Options) -> AsyncGenerator[Server]:
    """Listen and compute until the context is left; then drain for `options.drain` seconds and break off the rest."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        machine = Machine(options, stack)
        routes = routes_of(options.dialect)

        async def handle(request: Request, wire: Wire) -> None:
            await _handle(machine, routes, request, wire)

        listener = await loop.create_server(
            lambda: Connection(handle, machine.connections, options.keep_alive),
            options.host,
            options.port,
            backlog=1024,
        )
        host, port = listener.sockets[0].getsockname()[:2]
        tasks = [loop.create_task(machine.engine.run()), loop.create_task(_load(machine))]
        try:
            yield Server(machine, f"http://{host}:{port}")
        finally:
            listener.close()
            await _drain(machine, options.drain)
            await _stop(tasks)


def routes_of(dialect: DialectName) -> Mapping[tuple[str, str], Route]:
    """Method and path to route; the paths that only one engine has, only there."""
    routes: dict[tuple[str, str], Route] = {
        ("POST", "/v1/chat/completions"): generate.chat,
        ("POST", "/v1/completions"): generate.completions,
        ("POST", "/v1/embeddings"): generate.embeddings,
        ("POST", "/tokenize"): pages.tokenize,
        ("GET", "/v1/models"): pages.models,
        ("GET", "/health"): pages.health,
        ("GET", "/metrics"): pages.metrics_page,
        ("GET", "/sim/state"): pages.state,
        ("PUT", "/sim/fault"): pages.set_fault,
        ("POST", "/reset_prefix_cache"): pages.reset_cache,
    }
    own: Mapping[DialectName, dict[tuple[str, str], Route]] = {
        "vllm": {("GET", "/version"): pages.version},
        "tgi": {("GET", "/info"): pages.about},
        "llamacpp": {("GET", "/slots"): pages.slots, ("GET", "/v1/health"): pages.health},
        "trtllm": {
            ("GET", "/version"): pages.version,
            ("GET", "/metrics"): pages.iterations,
            ("GET", "/prometheus/metrics"): pages.prometheus,
            ("POST", "/kv_cache_events"): pages.kv_events,
        },
    }
    return routes | own[dialect]


async def _handle(machine: Machine, routes: Mapping[tuple[str, str], Route], request: Request, wire: Wire) -> None:
    """Answer one request, whatever comes."""
    try:
        if not request.path.startswith("/sim/"):
            _let_in(machine, request)
        await _find(machine, routes, request)(machine, request, wire)
    except Refused as refused:
        await pages.refuse(machine, wire, refused)


def _find(machine: Machine, routes: Mapping[tuple[str, str], Route], request: Request) -> Route:
    route = routes.get((request.method, request.path))
    if route is None:
        raise Refused("not_found", "File Not Found" if machine.dialect.name == "llamacpp" else "Not Found")
    return route


def _let_in(machine: Machine, request: Request) -> None:
    """Nobody while loading; then each engine guards other routes with its key. Raises Refused."""
    if machine.loading:
        raise Refused("loading", "Loading model")
    if not machine.options.api_key:
        return
    match machine.dialect.name:
        case "llamacpp":
            guarded = request.path not in {"/health", "/v1/health"}
        case "tgi":
            guarded = request.method == "POST"
        case _:
            guarded = request.path.startswith("/v1/")
    if guarded and request.headers.get("authorization") != f"Bearer {machine.options.api_key}":
        raise Refused("key", "Invalid API Key")


async def _load(machine: Machine) -> None:
    await asyncio.sleep(machine.options.start_delay)
    machine.loading = False


async def _drain(machine: Machine, seconds: float) -> None:
    """Let running answers end, then close every connection and wait until its task has ended too."""
    machine.draining = True
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(one.task is not None for one in machine.connections):  # noqa: ASYNC110  seldom
        await asyncio.sleep(0.02)
    tasks = [one.task for one in machine.connections if one.task is not None]
    for one in list(machine.connections):
        one.transport.abort()
    await _stop(tasks)


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
