"""The simulator as a program: `python -m engines.sim --port 0 --dialect vllm --model small`."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, get_args

import msgspec
import uvloop

from engines.sim.fastest import serve_fastest
from engines.sim.faults import FAULTS, Faults, UnknownFault
from engines.sim.kv_events import MissingDependency
from engines.sim.options import DialectName, Options
from engines.sim.server import serve

VARIABLE: Final = "TURNOUT_ENGINE_KEY"  # where a key is that no command line shows


def parse(argv: Sequence[str] | None = None) -> tuple[Options, bool]:
    """The options, and whether to stop when stdin ends."""
    faults = "\n".join(
        f"  {name}{':N' if kind.default is not None else '':4}{kind.doc}" for name, kind in FAULTS.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m engines.sim",
        description="A model server without a model.",
        epilog=f"faults, comma-separated:\n{faults}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for field in msgspec.structs.fields(Options):
        flag = "--" + field.name.replace("_", "-")
        extra: dict[str, Any] = {}
        if field.name == "dialect":
            extra["choices"] = get_args(DialectName)
        if field.type is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            kind = field.type if isinstance(field.type, type) else str
            parser.add_argument(flag, type=kind, default=field.default, help=f"default {field.default!r}", **extra)
    parser.add_argument("--watch-stdin", action="store_true", help="stop when stdin ends: when the parent dies")
    given = vars(parser.parse_args(argv))
    watch: bool = given.pop("watch_stdin")
    given["api_key"] = given["api_key"] or os.environ.get(VARIABLE, "")
    try:
        options = msgspec.convert(given, Options)
        Faults(options.fault)
    except (msgspec.ValidationError, UnknownFault) as error:
        parser.error(str(error))
    return options, watch


@asynccontextmanager
async def _serving(options: Options) -> AsyncGenerator[str]:
    if options.fastest:
        async with serve_fastest(options) as url:
            yield url
    else:
        async with serve(options) as server:
            yield server.url


async def run(options: Options, *, watch_stdin: bool) -> None:
    """Serve until SIGTERM, SIGINT or, if watched, the end of stdin."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, stop.set)
    async with _serving(options) as url:
        if watch_stdin:
            loop.add_reader(sys.stdin.fileno(), _read_stdin, stop)
        stopping = loop.create_task(stop.wait())
        await asyncio.wait({stopping}, timeout=options.start_delay)
        if not stop.is_set():
            sys.stdout.write(f"listening on {url}\n")
            sys.stdout.flush()
        await stopping
        if watch_stdin:
            loop.remove_reader(sys.stdin.fileno())


def _read_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 65536):
        stop.set()


def main() -> None:
    options, watch_stdin = parse()
    try:
        uvloop.run(run(options, watch_stdin=watch_stdin))
    except (MissingDependency, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
