"""Secrets, which the settings hold as a value or name by an environment variable or a file."""

import os
from collections.abc import Mapping
from pathlib import Path

from gateway.settings.errors import SettingsError


def secret(
    value: str | None,
    env: str | None,
    file: str | None,
    environ: Mapping[str, str] = os.environ,
    *,
    at: str = "",
) -> str | None:
    """A secret given in one of three ways, without white space around it; None where none is given.

    `at` is its path in the settings, such as `pools.large.key`. Raises SettingsError where what is named is not there.
    """
    if value is not None:
        return value.strip()
    if env is not None:
        found = environ.get(env, "").strip()
        if not found:
            how = "empty" if env in environ else "not set"
            raise SettingsError(f"{_place(at, 'env')}the environment variable {env} is {how}.")
        return found
    if file is not None:
        return _read(file, _place(at, "file"))
    return None


def _read(file: str, place: str) -> str:
    try:
        found = Path(file).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"{place}the file {file} cannot be read: {why}.") from error
    if not found:
        raise SettingsError(f"{place}the file {file} is empty.")
    return found


def _place(at: str, how: str) -> str:
    return f"{at}_{how}: " if at else ""
