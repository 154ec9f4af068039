"""A whole gateway in the test's own event loop: real database file, real transport, real server on a free port."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec
import uvicorn

from gateway.api.protocol import ClientProtocol
from gateway.app import Running, create_app, running
from gateway.db.migrate import migrate
from gateway.db.repositories import requests
from gateway.settings import Settings

KEY = "sk-test"
BEARER = {"authorization": f"Bearer {KEY}"}
TOKEN = "console-token"


class Handle(msgspec.Struct):
    url: str
    run: Running
    database_url: str

    @property
    def live(self):
        return self.run.gateway.live

    async def idle(self, seconds=5.0):
        """Wait until nothing is in flight or waiting here."""
        await until(lambda: not (self.live.inflight or self.live.waiting or self.live.leases), seconds)

    def client(self, **options):
        return httpx.AsyncClient(base_url=self.url, headers=BEARER, timeout=20, **options)


async def until(holds, seconds=5.0):
    """Wait until `holds()`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.005)


def tree(data, pools, **more):
    names = tuple(name for name, pool in pools.items() if pool.get("kind", "chat") == "chat")
    return {
        "data": str(data),
        "keys": [{"name": "tester", "key": KEY}],
        "pools": pools,
        "aliases": {"auto": {"pools": names, "quality_worth": 20.0}},
        "console": {"token": TOKEN},
        **more,
    }


@asynccontextmanager
async def gateway(data, pools, **more) -> AsyncIterator[Handle]:
    """`pools`: as in the configuration, by name."""
    settings = msgspec.convert(tree(data, pools, **more), Settings)  # tests may have what `load` refuses
    await empty_database(settings)
    async with running(settings) as run, listening(create_app(run)) as url:
        yield Handle(url, run, settings.database_url)
        run.pictures.end()


_migrated: list[bytes] = []  # the file of an empty database: migrating takes longer than most tests


async def empty_database(settings):
    file = settings.folder / "turnout.db"
    if not _migrated:
        await migrate(settings.database_url)
        _migrated.append(file.read_bytes())
    file.write_bytes(_migrated[0])


@asynccontextmanager
async def listening(app) -> AsyncIterator[str]:
    """Any ASGI application on a free port of 127.0.0.1."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", http=ClientProtocol, ws="none")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await task
        listener.close()


async def records(handle, count, seconds=5.0):
    """The request rows, once `count` of them are written."""
    from gateway.db.engine import open_database

    deadline = time.monotonic() + seconds
    async with open_database(handle.database_url) as db:
        while True:
            rows = await requests.recent(db, 1000)
            if len(rows) >= count:
                return rows
            assert time.monotonic() < deadline, f"{len(rows)} rows"
            await asyncio.sleep(0.05)
