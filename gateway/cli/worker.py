"""`turnout worker`: the build worker alone."""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

import click

from gateway.cli.options import config_options, load_settings, refuse
from gateway.cli.preflight import preflight
from gateway.db.errors import DatabaseError
from gateway.db.migrate import migrate
from gateway.settings import SettingsError
from gateway.worker import run_worker
from telemetry.logs import json_logs


@click.command(short_help="Run the build worker alone.")
@config_options
@click.option("--watch-stdin", is_flag=True, help="Leave when standard input ends: whoever started this is gone.")
def command(config: Path | None, data: str | None, *, watch_stdin: bool) -> None:
    """Take engine builds from the queue, one at a time, until SIGTERM or Ctrl-C.

    A build that runs then is stopped and goes back into the queue; so does one whose worker was killed, when a worker
    starts again.

    Example: turnout worker --config turnout.toml
    """
    settings = load_settings(config, data)
    signal.signal(signal.SIGTERM, _leave)  # until the worker has its own way
    if watch_stdin:
        threading.Thread(target=_leave_with_stdin, name="stdin", daemon=True).start()
    with json_logs(settings.telemetry.log_level, sys.stderr):
        try:
            preflight(settings, engines="elsewhere")
            asyncio.run(migrate(settings.database_url))
            status = run_worker(settings)
        except (SettingsError, DatabaseError) as error:
            refuse(error)
    sys.exit(status)


def _leave(_number: int, _frame: object) -> None:
    sys.exit(0)


def _leave_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
