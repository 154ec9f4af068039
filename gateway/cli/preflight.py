"""Seeing, before anything starts, that all is there that the settings name: secrets, files, extras."""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from gateway.control.snapshot import catalog
from gateway.control.supply import recipes_of
from gateway.db.engine import parse_url
from gateway.db.errors import DatabaseError
from gateway.settings import Settings, SettingsError, extras, secret


def preflight(
    settings: Settings,
    *,
    engines: Literal["elsewhere", "named", "here"],
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Raises SettingsError, with the path of the first setting that names what is not there.

    `engines`: whether this process is to run them (`here`), only shows what would be run (`named`), or has nothing to
    do with their files, which may lie on another machine.
    """
    catalog(settings, (), environ=environ)  # opens every key of callers and of servers
    console = settings.console
    if console.enabled:
        secret(console.token, console.token_env, console.token_file, environ, at="console.token")
    for name, entry in settings.pools.items():
        _file(f"pools.{name}.ca", entry.ca)
    _file("classifier.artefact", settings.classifier.artefact)
    _database(settings)
    extras.check_broker(settings)
    if engines != "elsewhere":
        recipes_of(settings.pools)
    if engines == "here":
        _llamacpp(settings)


def _file(path: str, file: str | None) -> None:
    if file is None:
        return
    try:
        with Path(file).expanduser().open("rb"):
            pass
    except OSError as error:
        raise SettingsError(f"{path}: the file {file} cannot be read: {error.strerror}.") from error


def _database(settings: Settings) -> None:
    try:
        parse_url(settings.database_url)
    except DatabaseError as error:
        raise SettingsError(f"database.url: {error}") from error


def _llamacpp(settings: Settings) -> None:
    for name, entry in settings.pools.items():
        if (
            entry.ours
            and entry.maximum > 0
            and entry.simulated is None
            and importlib.util.find_spec("xllamacpp") is None
        ):
            raise SettingsError(f"pools.{name}: llama.cpp needs the extra `local`: {extras.install('local')}")
