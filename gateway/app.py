"""Composition root: settings to a Litestar application, and all that runs beside it."""

import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from random import Random

import msgspec
from litestar import Litestar
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from backends import registry
from backends.types import PATHS, Backend, Load, Operation, ReplicaId
from backends.wire import WireUpstream
from classifier.score import Scorer
from gateway.api.failures import tell
from gateway.api.health import health_routes
from gateway.api.models import model_routes
from gateway.api.routes import Application, Generate, Inlet, generating_routes
from gateway.console.live import Live as Pictures
from gateway.console.session import Door
from gateway.console.views import Console, console_routes
from gateway.control.beside import Pace, beside
from gateway.control.demand import DemandReporter, reporting
from gateway.control.names import ModelNames
from gateway.control.overview import Watch
from gateway.control.publish import CatalogPoll, polling
from gateway.control.usage import RecordWriter, recording
from gateway.db.engine import open_database
from gateway.serve.admit import Admission
from gateway.serve.authenticate import digest
from gateway.serve.breaker import Breaker
from gateway.serve.catalog import Caller, Catalog, Live, Pool
from gateway.serve.difficulty import Judge
from gateway.serve.facts import Gather
from gateway.serve.pipeline import Pipeline
from gateway.serve.prefix import PrefixIndex
from gateway.serve.queue import PoolQueue
from gateway.serve.trail import Trail
from gateway.settings import Settings, secret
from telemetry.exposition import CONTENT_TYPE
from telemetry.record import RequestRecord
from telemetry.setup import Telemetry, open_telemetry

_log = logging.getLogger("turnout.gateway")
_TICK = 0.5  # seconds between looks at what only time changes: back-offs that end, gauges, the loop's lag
_clock = time.perf_counter


class Gateway:
    """The request path's state, open and running: one for each process."""

    def __init__(self, settings: Settings, scorer: Scorer, backends: Mapping[str, Backend]) -> None:
        self.settings = settings
        self.backends = backends
        self.names = ModelNames(backends)
        self.live = Live()
        self.breaker = Breaker(_clock, self.live.blocked)
        self.index = PrefixIndex(settings.prefix.block, settings.prefix.blocks_per_replica)
        self.queue = PoolQueue(self.catalog, self.live, _clock)
        self.gather = Gather(self.index, Judge(scorer), settings.classifier.margin)
        self.console_key = secrets.token_urlsafe(32)
        self._told = self._catalog = Catalog()

    def catalog(self) -> Catalog:
        return self._catalog

    def publish(self, catalog: Catalog) -> None:
        """Swap the catalog, forget replicas that are gone, and let waiters look again."""
        self._told = catalog
        callers = {**catalog.callers, digest(self.console_key): Caller("console")}
        self._catalog = catalog = msgspec.structs.replace(self.names.named(catalog), callers=callers)
        there = [replica for pool in catalog.pools.values() for replica in pool.replicas]
        self.index.keep(there)
        self.breaker.keep(there)
        self.queue.poke_all()

    def loads(self, loads: Mapping[ReplicaId, Load]) -> None:
        self.live.loads = dict(loads)

    async def ask_names(self) -> None:
        """Have servers say which model they serve, where nobody else has."""
        if await self.names.ask(self._told, _clock()):
            self.publish(self._told)

    def pipeline(self, telemetry: Telemetry, writer: RecordWriter, reporter: DemandReporter) -> Pipeline:
        def arrived(pool: Pool) -> None:
            reporter.arrived(pool.name)
            if not pool.replicas:
                reporter.poke()  # it is asleep: the control loop should hear at once

        def record(record: RequestRecord, trail: Trail) -> None:
            telemetry.request(record, trail.trace)
            writer.add(record)

        return Pipeline(
            self.catalog,
            self.live,
            self.backends,
            Admission(_clock),
            self.queue,
            self.index,
            self.breaker,
            self.gather,
            arrived,
            record,
        )

    async def tick(self, pace: Pace, telemetry: Telemetry, writer: RecordWriter) -> None:
        """Until the pace is stopped: end back-offs that are over, and read the gauges."""
        dropped = 0
        while not pace.stopped:
            began = _clock()
            await pace.pause(_TICK)
            telemetry.instruments.loop_lag(max(0.0, _clock() - began - _TICK))
            await self.ask_names()
            self.breaker.blocked()
            self.queue.poke_all()
            for pool in self._catalog.pools.values():
                inflight = sum(self.live.inflight.get(replica.id, 0) for replica in pool.replicas)
                telemetry.instruments.queue(pool.name, self.live.waiting.get(pool.name, 0), inflight)
                telemetry.instruments.replicas(pool.name, {"ready": len(pool.replicas)})
            stats = self.index.stats()
            telemetry.instruments.index(stats.blocks, stats.mode, stats.reason)
            telemetry.instruments.dropped(writer.dropped - dropped)
            dropped = writer.dropped


class Running(msgspec.Struct, frozen=True):
    """What the application is made of."""

    gateway: Gateway
    pipeline: Pipeline
    telemetry: Telemetry
    pictures: Pictures


@asynccontextmanager
async def running(settings: Settings) -> AsyncGenerator[Running]:
    """Open everything a gateway needs; its first catalog is there when this yields. Raises SettingsError."""
    identity = settings.gateway.id or f"{socket.gethostname()}-{os.getpid()}"
    upstream = WireUpstream()
    artefact = settings.classifier.artefact
    gateway = Gateway(settings, Scorer.load(Path(artefact) if artefact else None), registry.create(upstream))
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(settings.database_url))
        telemetry = stack.enter_context(
            open_telemetry(
                otlp_endpoint=settings.telemetry.otlp_endpoint,
                export_interval=settings.telemetry.export_interval,
                sample=settings.telemetry.sample,
                service="turnout-gateway",
                instance=identity,
                clock=_clock,
            )
        )
        stack.push_async_callback(upstream.aclose)
        writer = await stack.enter_async_context(recording(RecordWriter(database)))
        reporter = DemandReporter(
            database,
            gateway=identity,
            live=gateway.live,
            catalog=gateway.catalog,
            interval=settings.control.interval,
            clock=time.time,
        )
        poll = CatalogPoll(database, settings, publish=gateway.publish, loads=gateway.loads, clock=time.time)
        await stack.enter_async_context(polling(poll))
        await stack.enter_async_context(reporting(reporter))
        await gateway.ask_names()
        pipeline = gateway.pipeline(telemetry, writer, reporter)
        pace = Pace()
        await stack.enter_async_context(beside(lambda: gateway.tick(pace, telemetry, writer), pace))
        watch = Watch(database, gateway.catalog, gateway.live, telemetry.window.span)
        yield Running(gateway, pipeline, telemetry, Pictures(watch.look, watch.history))


def create_app(run: Running) -> Litestar:
    """The application over parts that are open; it owns none of them."""
    settings = run.gateway.settings
    inlet = Inlet(
        max_body=settings.gateway.max_body,
        compress=settings.compression.default == "lossless",
        new_id=_ids(),
        new_trace=run.telemetry.tracer.begin,
        clock=_clock,
    )
    generating: dict[Operation, Generate] = {operation: Generate(operation, run.pipeline, inlet) for operation in PATHS}
    routes = [
        *generating_routes(generating),
        *model_routes(run.gateway.catalog),
        *health_routes(run.gateway.catalog, lambda: (run.telemetry.exposition(), CONTENT_TYPE)),
    ]
    if settings.console.enabled:
        routes += console_routes(_console(run, generating["chat"]))
    return Application(
        routes,
        exception_handlers={Exception: tell},
        # The document alone: pages that show it would load scripts from elsewhere.
        openapi_config=OpenAPIConfig(
            "Turnout", version("turnout"), path="/schema", render_plugins=[JsonRenderPlugin(path="/openapi.json")]
        ),
        debug=False,
        logging_config=None,
    ).straight_to(generating)


def _console(run: Running, chat: Generate) -> Console:
    asked = run.gateway.settings.console
    return Console(
        Door(secret(asked.token, asked.token_env, asked.token_file)),
        run.pictures,
        run.gateway.catalog,
        chat,
        run.gateway.console_key,
        f"turnout {version('turnout')}",
    )


def _ids() -> Callable[[], str]:
    """What names requests: at random, without asking the system each time."""
    random = Random().getrandbits  # noqa: S311  names, not secrets
    return lambda: f"req_{random(96):024x}"
