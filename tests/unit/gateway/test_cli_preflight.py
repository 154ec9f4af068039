"""What the settings name and is not there is told before anything starts, by every command, in one line."""

import importlib.util

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.cli.preflight import preflight
from gateway.settings import SettingsError, load

FAR = '[pools.far]\nurl = "http://h"\n'
CASES = [
    (f'{FAR}key_env = "NO_SUCH"', "pools.far.key_env: the environment variable NO_SUCH is not set."),
    (f'{FAR}key_file = "/no/key"', "pools.far.key_file: the file /no/key cannot be read: No such file"),
    (f'{FAR}ca = "/no/ca.pem"', "pools.far.ca: the file /no/ca.pem cannot be read: No such file"),
    (
        f'{FAR}[[keys]]\nname = "a"\nkey_env = "NO_SUCH"',
        "keys[0].key_env: the environment variable NO_SUCH is not set.",
    ),
    (f'{FAR}[[keys]]\nname = "a"\nsha256 = "x"', "keys[0].sha256: give 64 hexadecimal digits."),
    (f'{FAR}[console]\ntoken_file = "/no/token"', "console.token_file: the file /no/token cannot be read"),
    (f'{FAR}[classifier]\nartefact = "/no/a.npz"', "classifier.artefact: the file /no/a.npz cannot be read"),
    (f'{FAR}[database]\nurl = "mysql://h/d"', "database.url: "),
]


@pytest.mark.parametrize("command", ["up", "control", "gateway", "worker", "settings"])
@pytest.mark.parametrize(("text", "words"), CASES)
def test_each_command_tells_it_in_one_line_and_starts_nothing(tmp_path, monkeypatch, command, text, words):
    monkeypatch.delenv("NO_SUCH", raising=False)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "t.toml"
    file.write_text(text)
    done = CliRunner().invoke(main, [command, "--config", str(file), "--data", str(tmp_path / "data")])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("turnout: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


def settings(tmp_path, text, builtin=None):
    file = tmp_path / "t.toml"
    file.write_text(text)
    return load(file, {}, builtin)


@pytest.mark.parametrize(
    ("module", "text", "words"),
    [
        ("redis", '[broker]\nurl = "redis://h"', r"broker\.url: Redis needs the extra `redis`: \.venv/bin/pip install -e '\.\[redis\]'"),
        ("asyncpg", '[database]\nurl = "postgresql://h/d"', r"database\.url: PostgreSQL needs the extra `postgres`: .*\[postgres\]"),
        ("xllamacpp", '[pools.p.recipe]\nengine = "llamacpp"\nsource = "smollm2-135m-instruct"', r"pools\.p: llama\.cpp needs the extra `local`"),
    ],
)  # fmt: skip
def test_an_extra_that_is_missing_is_told_with_what_installs_it(tmp_path, monkeypatch, module, text, words):
    whole = settings(tmp_path, text)
    preflight(whole, engines="here", environ={})
    there = importlib.util.find_spec
    without = lambda name: None if name == module else there(name)  # noqa: E731
    for place in ("importlib.util.find_spec", "gateway.settings.extras.find_spec", "gateway.db.engine.find_spec"):
        monkeypatch.setattr(place, without)
    with pytest.raises(SettingsError, match=words):
        preflight(whole, engines="here", environ={})


def test_a_model_file_counts_only_where_it_is_used(tmp_path):
    whole = settings(tmp_path, '[pools.p]\ngguf = "/no/m.gguf"')
    preflight(whole, engines="elsewhere", environ={})
    for engines in ("named", "here"):
        with pytest.raises(SettingsError, match=r"pools\.p\.gguf: there is no file /no/m\.gguf"):
            preflight(whole, engines=engines, environ={})


def test_what_is_there_passes(tmp_path):
    (tmp_path / "ca.pem").write_text("x")
    text = f'{FAR}key_env = "K"\nca = "{tmp_path / "ca.pem"}"\n[[keys]]\nname = "a"\nkey = "b"\n'
    preflight(settings(tmp_path, text), engines="here", environ={"K": "k"})
