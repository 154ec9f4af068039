"""`turnout worker`: the build worker alone."""

import asyncio
import signal
import sys
from pathlib import Path

import click

from gateway.cli.options import config_options, leave_with_stdin, load_settings, refuse, watch_stdin_option
from gateway.cli.preflight import preflight
from gateway.db.errors import DatabaseError
from gateway.db.migrate import migrate
from gateway.settings import SettingsError
from gateway.worker import run_worker
from telemetry.logs import json_logs


@click.command(short_help="Run the build worker alone.")
@config_options
@watch_stdin_option
def command(config: Path | None, data: str | None, *, watch_stdin: bool) -> None:
    """Take engine builds from the queue, one at a time, until SIGTERM or Ctrl-C.

    A build that runs then is stopped and goes back into the queue; so does one whose worker was killed, when a worker
    starts again.

    Example: turnout worker --config turnout.toml
    """
    settings = load_settings(config, data)
    signal.signal(signal.SIGTERM, _leave)  # until the worker has its own way
    if watch_stdin:
        leave_with_stdin()
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
