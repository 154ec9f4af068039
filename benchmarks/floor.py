"""The least a Litestar gateway could cost: `@asgi` routes that read the body and answer, under uvicorn and uvloop.

python benchmarks/floor.py [--chunks 64]

POST /v1/chat/completions answers 400 fixed bytes; with `"stream":true` in the body it sends the head and each of the
chunks as messages of their own, all at once. The model `paced` sends one each 10 ms. Nothing is forwarded.
"""

import argparse
import asyncio
import socket

import msgspec
import uvicorn
from litestar import Litestar, asgi
from litestar.types import Receive, Scope, Send

INTERVAL = 0.01
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"400")]
_STREAM_HEADERS = [(b"content-type", b"text/event-stream")]


def app(chunks: int) -> Litestar:
    event = (
        b"data: "
        + msgspec.json.encode({"choices": [{"index": 0, "delta": {"content": " word"}}], "id": "x" * 100})
        + b"\n\n"
    )

    @asgi("/v1/chat/completions", copy_scope=False)
    async def chat(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if b'"stream":true' not in body[-512:]:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": b"x" * 400, "more_body": False})
            return
        pause = INTERVAL if b'"model":"paced"' in body[:512] else 0.0
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        for _ in range(chunks):
            await send({"type": "http.response.body", "body": event, "more_body": True})
            if pause:
                await asyncio.sleep(pause)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return Litestar([chat], openapi_config=None, logging_config=None)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        print(f"listening on http://127.0.0.1:{port}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=64)
    given = parser.parse_args()
    config = uvicorn.Config(
        app(given.chunks),
        port=0,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        log_config=None,
        access_log=False,
        ws="none",
    )
    _Server(config).run()


if __name__ == "__main__":
    main()
