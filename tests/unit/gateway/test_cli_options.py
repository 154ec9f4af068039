"""What the commands share, and the worker command's own mistakes."""

import click
import pytest
from click.testing import CliRunner

from gateway.cli.options import config_options, load_settings, refuse
from gateway.cli.prepare import InUse
from gateway.db.errors import BadUrl, Unavailable
from gateway.settings import SettingsError


@click.command
@config_options
def show(config, data):
    settings = load_settings(config, data, builtin={"gateway": {"port": 1}, "data": "builtin"})
    click.echo(f"{settings.gateway.port} {settings.data}")


def run(command, *arguments, **environ):
    return CliRunner().invoke(command, arguments, env=environ)


def test_file_environment_and_options_in_their_order(tmp_path):
    file = tmp_path / "turnout.toml"
    file.write_text('data = "file"\n[gateway]\nport = 2\n')
    assert run(show).output == "1 builtin\n"
    assert run(show, "--config", str(file)).output == "2 file\n"
    assert run(show, "--config", str(file), TURNOUT__DATA="environment").output == "2 environment\n"
    assert run(show, "--config", str(file), "--data", "option", TURNOUT__DATA="environment").output == "2 option\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [("gateway = [", "not valid TOML"), ("[gateway]\nprot = 1", "prot"), ("[pools.a]\nslots = 0", "pools.a.slots")],
)
def test_a_mistake_is_one_line_and_status_2(tmp_path, content, words):
    file = tmp_path / "turnout.toml"
    file.write_text(content)
    result = run(show, "--config", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("turnout: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_not_there():
    result = run(show, "--config", "/no/such/file")
    assert result.exit_code == 2
    assert "/no/such/file" in result.stderr


@pytest.mark.parametrize(
    ("error", "status"), [(SettingsError("x"), 2), (BadUrl("x"), 2), (InUse("x"), 2), (Unavailable("x"), 1)]
)
def test_only_what_may_pass_by_itself_is_worth_another_try(error, status, capsys):
    with pytest.raises(SystemExit) as caught:
        refuse(error)
    assert caught.value.code == status
    assert capsys.readouterr().err == "turnout: x\n"
