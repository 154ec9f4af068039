"""`turnout settings`: the effective tree, secrets hidden."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import click

from gateway.cli.builtin import builtin
from gateway.cli.options import config_options, load_settings, refuse
from gateway.cli.preflight import preflight
from gateway.cli.prepare import tree
from gateway.cli.toml import dumps
from gateway.settings import SettingsError

SECRET: Final = frozenset({"key", "token", "api_key"})  # names whose value is a secret wherever they stand
HIDDEN: Final = "(hidden)"


@click.command(short_help="Show the effective settings.")
@config_options
@click.option("--json", "as_json", is_flag=True, help="JSON instead of TOML.")
def command(config: Path | None, data: str | None, *, as_json: bool) -> None:
    """Print every setting as `turnout up` would take it: built-in tree, file, environment. Secrets are hidden.

    Example: turnout settings --config turnout.toml --json
    """
    settings = load_settings(config, data, builtin())
    try:
        preflight(settings, engines="named")
    except SettingsError as error:
        refuse(error)
    shown = hidden(tree(settings))
    click.echo(json.dumps(shown, indent=2, ensure_ascii=False) if as_json else dumps(shown), nl=as_json)


def hidden(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with every secret replaced, also the passwords inside URLs."""
    return {name: _hidden(name, value) for name, value in plain.items()}


def _hidden(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return hidden(cast("Mapping[str, Any]", value))
    if isinstance(value, list | tuple):
        return [_hidden(name, below) for below in cast("list[Any]", value)]
    if isinstance(value, str):
        return HIDDEN if name in SECRET else _without_password(value)
    return value


def _without_password(value: str) -> str:
    if "://" not in value:
        return value
    try:
        password = urlsplit(value).password
    except ValueError:
        return value
    return value.replace(f":{password}@", f":{HIDDEN}@", 1) if password else value
