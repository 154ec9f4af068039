"""What exists is documented: errors, headers, routes, settings, commands."""

import re
from pathlib import Path

import msgspec
import pytest

from gateway import cli
from gateway.serve import errors
from gateway.settings import Settings

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def page(name):
    return (REFERENCE / name).read_text()


def kinds():
    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.GatewayError)]
    return [one for one in found if one is not errors.UpstreamRefused]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_error_is_a_row(kind):
    assert f"| {kind.status} | `{kind.type}` | `{kind.code}` |" in page("errors.md")


def test_no_row_without_its_error():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| `(\w+)` \|", page("errors.md"), re.MULTILINE)
    assert {(int(status), kind, code) for status, kind, code in rows} == {(k.status, k.type, k.code) for k in kinds()}


def test_every_answer_header_is_explained():
    source = (ROOT / "gateway" / "serve" / "trail.py").read_text()
    sent = set(re.findall(r'b"(x-turnout-[a-z-]+)"', source))
    assert len(sent) == 7
    assert sent <= set(re.findall(r"^\| `(x-turnout-[a-z-]+)` \|", page("http.md"), re.MULTILINE))


def leaves(kind, prefix):
    for field in msgspec.structs.fields(kind):
        path = f"{prefix}{field.encode_name}"
        inner = [one for one in (field.type, *getattr(field.type, "__args__", ())) if isinstance(one, type)]
        structs = [one for one in inner if issubclass(one, msgspec.Struct)]
        if not structs:
            yield path
        for struct in structs:
            yield from leaves(struct, path + (".NAME." if getattr(field.type, "__origin__", None) is dict else "."))


def test_every_setting_is_a_row():
    paths = {path.replace("keys.", "keys[].") for path in leaves(Settings, "")}
    assert len(paths) > 50
    rows = set(re.findall(r"^\| `([\w.\[\]]+)` \|", page("settings.md"), re.MULTILINE))
    assert rows == paths


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_is_described_and_has_an_example(name):
    text = page("cli.md")
    assert f"## turnout {name}" in text
    command = cli.main.get_command(None, name)
    assert "xample" in (command.help or "") + (command.epilog or ""), f"turnout {name} --help shows an example"
