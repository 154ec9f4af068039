"""The `turnout` command: one file a subcommand, imported only when it is asked for."""

from importlib import import_module
from typing import Final

import click
from typing_extensions import override

COMMANDS: Final = {
    "up": "Run everything on this machine: gateway, control loop, worker, engines.",
    "gateway": "Run the REST gateway alone.",
    "control": "Run the control loop alone.",
    "worker": "Run the build worker alone.",
    "classifier": "Train and evaluate the classifier that routes requests.",
    "settings": "Show the effective settings, secrets hidden.",
}


class _Lazy(click.Group):
    """A group that knows its commands by name and imports `gateway.cli.<name>` (attribute `command`) when needed."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"gateway.cli.{cmd_name}").command
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="turnout")
def main() -> None:
    """Turnout: an autoscaling model gateway for people who serve LLMs themselves.

    Start here: turnout up
    """
