"""What every command shares: where the settings come from, and how a mistake in them is told."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from gateway.db.errors import Unavailable
from gateway.settings import Settings, SettingsError, load

C = TypeVar("C", bound=Callable[..., object])


def config_options(function: C) -> C:
    """Adds `--config FILE` and `--data FOLDER`; the command gets `config: Path | None` and `data: str | None`."""
    data = click.option(
        "--data", metavar="FOLDER", help="Where weights, database and logs live.  [default: ./.turnout]"
    )
    config = click.option(
        "--config", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Settings, in TOML."
    )
    return config(data(function))


def watch_stdin_option(function: C) -> C:
    """Adds `--watch-stdin`: a supervisor holds the pipe, and its end means that the supervisor is gone."""
    return click.option(
        "--watch-stdin", is_flag=True, help="Leave when standard input ends: whoever started this is gone."
    )(function)


def leave_with_stdin() -> None:
    """Have SIGTERM come when standard input ends; returns at once."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="stdin", daemon=True).start()


def load_settings(config: Path | None, data: str | None = None, builtin: Mapping[str, Any] | None = None) -> Settings:
    """The effective settings. `data` from the command line wins over file and environment.

    A mistake ends the program with one line on standard error and status 2.
    """
    given = {} if data is None else {"TURNOUT__DATA": data}
    try:
        return load(config, builtin=builtin, environ={**os.environ, **given})
    except SettingsError as error:
        fail(str(error))


def refuse(error: Exception) -> NoReturn:
    """End the program: with 2 where it can only be run another way, with 1 where trying again may help."""
    fail(str(error), 1 if isinstance(error, Unavailable) else 2)


def fail(words: str, status: int = 2) -> NoReturn:
    """End the program with one clear line."""
    click.echo(f"turnout: {' '.join(words.split())}", err=True)
    sys.exit(status)
