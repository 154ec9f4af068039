"""What `turnout up` lays out and prints before and around the start."""

import json
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
import tomllib
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gateway.cli import main, prepare
from gateway.cli.banner import banner, base_url, curl
from gateway.cli.builtin import builtin
from gateway.cli.progress import PoolView, Ticker, line, outlook
from gateway.cli.settings import HIDDEN, hidden
from gateway.db.rows import BuildRow, ReplicaRow
from gateway.settings import AliasSettings, Console, Gateway, Key, PoolSettings, Settings, SettingsError, load


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_and_its_secrets_are_the_owners_alone(tmp_path):
    folder = tmp_path / "a" / "data"
    prepare.make_folder(folder)
    settings = prepare.with_secrets(Settings(data=str(folder)))
    assert mode(folder) == 0o700
    assert mode(folder / "key") == mode(folder / "console-token") == 0o600
    key = prepare.first_key(settings.keys)
    assert key is not None
    assert key.startswith("sk-turnout-")
    assert len(key) > 40
    again = prepare.with_secrets(Settings(data=str(folder)))
    assert prepare.first_key(again.keys) == key
    assert prepare.console_token(again.console) == prepare.console_token(settings.console)


def test_a_folder_that_cannot_be_made_names_the_way_out(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="--data DIR"):
        prepare.make_folder(tmp_path / "file" / "data")


def test_keys_and_tokens_of_the_user_stay(tmp_path):
    keys = (
        Key(name="hashed", sha256="0" * 64),
        Key(name="narrow", key="k1", models=("a",)),
        Key(name="mine", key="k2"),
    )
    settings = Settings(data=str(tmp_path), keys=keys, console=Console(token="t"))
    assert prepare.with_secrets(settings).keys == keys
    assert prepare.first_key(keys) == "k2"
    assert prepare.first_key(keys[:1]) is None
    assert prepare.console_token(prepare.with_secrets(settings).console) == "t"
    assert prepare.console_token(Console(enabled=False, token="t")) is None
    assert list(tmp_path.iterdir()) == []


def test_what_the_parts_read_is_what_was_meant(tmp_path):
    settings = prepare.with_secrets(load(None, {}, builtin={**builtin(), "data": str(tmp_path)}))
    file = tmp_path / "turnout.toml"
    prepare.write_settings(settings, file)
    assert load(file, {}) == settings
    assert mode(file) == 0o600
    assert (tmp_path / "key").read_text().strip() not in file.read_text()


def test_simulated_pools_keep_their_rates_and_leave_foreign_ones_alone():
    pools = {"a": PoolSettings(recipe={}, prefill_rate=5, decode_rate=6), "b": PoolSettings(url="http://x")}
    made = prepare.simulated(Settings(pools=pools)).pools
    assert made["a"].simulated == {"dialect": "llamacpp", "prefill_rate": 5, "decode_rate": 6}
    assert made["b"] == pools["b"]


@pytest.mark.parametrize(("backend", "dialect"), [(None, "llamacpp"), ("openai", "vllm"), ("tgi", "tgi")])
def test_the_simulator_speaks_as_the_pools_backend_expects(backend, dialect):
    made = prepare.simulated(Settings(pools={"a": PoolSettings(gguf="x", backend=backend)}))
    assert made.pools["a"].simulated["dialect"] == dialect


def test_one_folder_one_holder(tmp_path):
    lock = tmp_path / "lock"
    held = rf"already running on the data folder .* \(process {os.getpid()}\)"
    with prepare.alone(lock, "Turnout"), pytest.raises(prepare.InUse, match=held), prepare.alone(lock, "Turnout"):
        raise AssertionError("two at once")
    with prepare.alone(lock, "Turnout") as killed:
        assert not killed
        assert not prepare.free(lock)
    assert prepare.free(lock)


def test_a_killed_holder_holds_nothing(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from gateway.cli.prepare import alone\n"
        "with alone(Path(sys.argv[1]), 'x'): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "lock")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(prepare.InUse, match=str(holder.pid)), prepare.alone(tmp_path / "lock", "x"):
            pass
        holder.kill()
    with prepare.alone(tmp_path / "lock", "x") as killed:
        assert killed


def test_a_taken_port_names_one_that_is_free():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(prepare.InUse, match=f"Port {port} on 127.0.0.1 is taken") as caught:
            prepare.claim_port("127.0.0.1", port)
    first, second = re.search(
        r"turnout up --port (\d+), or TURNOUT__GATEWAY__PORT=(\d+) make dev$", str(caught.value)
    ).groups()
    assert first == second
    offered = int(first)
    assert prepare.claim_port("127.0.0.1", offered) == offered
    assert prepare.claim_port("127.0.0.1", 0) > 0


def test_an_address_that_is_not_ours_is_a_mistake_in_the_settings():
    with pytest.raises(SettingsError, match=r"Cannot serve on 192\.0\.2\.1:"):
        prepare.claim_port("192.0.2.1", 8000)


def test_the_parts_take_their_settings_from_the_file_alone():
    assert prepare.environment(Path("/d"), {"TURNOUT__GATEWAY__PORT": "0", "MY_KEY": "k"}) == {"MY_KEY": "k"}


def test_byte_code_goes_to_the_data_folder_where_it_may_not_lie_beside_the_source():
    never, elsewhere = {"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONPYCACHEPREFIX": "/p"}
    assert prepare.environment(Path("/d"), {}) == {}
    assert prepare.environment(Path("/d"), never | elsewhere) == never | elsewhere
    assert prepare.environment(Path("/d"), never) == {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": "/d/cache/bytecode",
    }


SETTINGS = Settings(
    data="/d",
    gateway=Gateway(port=9),
    pools={
        "small": PoolSettings(recipe={}),
        "embed": PoolSettings(recipe={}, kind="embed", minimum=0),
        "far": PoolSettings(url="http://f"),
    },
    aliases={"auto": AliasSettings(("small", "far"))},
)


def test_the_banner_says_all_there_is_to_know():
    views = [PoolView("small", "ready", "ready"), PoolView("far", "stuck", "http://f: refused")]
    text = banner(SETTINGS, views, key="sk-1", token="t-1")
    for words in (
        "http://127.0.0.1:9/v1",
        "sk-1",
        "http://127.0.0.1:9/console?token=t-1",
        "auto (routed over small, far), small, embed (from zero), far",
        "! far: http://f: refused",
        "/d",
    ):
        assert words in text


def test_the_banner_does_not_claim_what_is_not():
    views = [PoolView("small", "stuck", "build failed: disk full")]
    assert "no pool can answer yet" in banner(SETTINGS, views, key="k", token=None)


def test_the_curl_line_is_one_shell_command():
    words = shlex.split(curl(SETTINGS, "sk-it's"))
    assert words[:3] == ["curl", "-sS", "http://127.0.0.1:9/v1/chat/completions"]
    assert "Authorization: Bearer sk-it's" in words
    body = json.loads(words[-1])
    assert body["model"] == "auto"
    assert body["messages"][0]["content"] == "What is 2+2?"
    assert "$TURNOUT_API_KEY" in curl(SETTINGS, None)


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:9"), ("::", "http://[::1]:9"), ("box", "http://box:9")]
)
def test_where_one_asks_is_not_always_where_one_serves(host, url):
    assert base_url(msgspec.structs.replace(SETTINGS, gateway=Gateway(host=host, port=9))) == url


def build(state, **more) -> BuildRow:
    return BuildRow(digest="d", recipe={}, state=state, log="/l", **more)


def replica(state, pool="small", **more) -> ReplicaRow:
    return ReplicaRow(id=f"{pool}-1", pool=pool, url="", state=state, **more)


@pytest.mark.parametrize(
    ("builds", "replicas", "state", "words"),
    [
        ([], [], "working", "waiting"),
        ([build("queued")], [], "working", "build queued"),
        ([build("running", progress=0.42, message="expert 3")], [], "working", "building 42%: expert 3"),
        ([build("failed", message="disk full")], [], "stuck", "build failed"),
        ([build("done")], [], "working", "waiting"),
        ([build("done")], [replica("joining")], "working", "starting"),
        ([build("done")], [replica("ready")], "ready", "ready"),
        ([], [replica("gone", reason="exited with code 1")], "stuck", "exited with code 1"),
    ],
)
def test_where_a_pool_stands(builds, replicas, state, words):
    (view, far) = outlook(SETTINGS.pools, {"small": "d"}, builds, replicas)
    assert (view.pool, view.state, view.words) == ("small", state, words)
    assert (far.state, far.words) == ("stuck", "http://f: not probed yet")  # embed rests at zero: nobody waits for it


def test_a_server_that_is_not_ours_is_ready_when_it_answers():
    (_, far) = outlook(SETTINGS.pools, {}, [], [replica("ready", "far")])
    assert far.state == "ready"
    assert line([far, PoolView("a", "working", "waiting")]) == "far: ready | a: waiting"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_that_is_written_over():
    out = Terminal()
    ticker = Ticker(out, lambda: 20)
    ticker.show("building 1%")
    ticker.show("building 1%")
    ticker.show("x" * 50)
    ticker.tell("said")
    assert out.getvalue() == "\r\x1b[Kbuilding 1%\r\x1b[K" + "x" * 19 + "\r\x1b[Ksaid\n"


def test_a_file_gets_each_stage_once():
    out = StringIO()
    ticker = Ticker(out, lambda: 20)
    for percent in range(5):
        ticker.show(f"building {percent}%")
    ticker.show("starting")
    ticker.clear()
    assert out.getvalue() == "building 0%\nstarting\n"


def test_secrets_are_hidden_wherever_they_stand():
    shown = hidden(
        {
            "keys": [{"name": "a", "key": "k"}, {"name": "b", "key_env": "E", "key": None}],
            "pools": {"p": {"key": "k", "simulated": {"api_key": "k"}, "url": ["https://u:pw@h/x"]}},
            "database": {"url": "postgresql://u:pw@h/db"},
            "console": {"token": "t", "token_file": "f"},
        }
    )
    text = json.dumps(shown)
    assert '"k"' not in text
    assert "pw" not in text
    assert '"t"' not in text
    assert shown["keys"] == [{"name": "a", "key": HIDDEN}, {"name": "b", "key_env": "E", "key": None}]
    assert shown["database"] == {"url": "postgresql://u:(hidden)@h/db"}
    assert shown["console"] == {"token": HIDDEN, "token_file": "f"}


def test_the_settings_command_prints_what_up_would_take(tmp_path):
    file = tmp_path / "t.toml"
    file.write_text('[pools.large]\nurl = "http://big"\nkey = "sk-secret"\n[gateway]\nport = 1\n')
    run = CliRunner().invoke(main, ["settings", "--config", str(file)], env={"TURNOUT__GATEWAY__PORT": "2"})
    assert run.exit_code == 0, run.output
    told = tomllib.loads(run.output)
    assert told["gateway"]["port"] == 2
    assert told["pools"]["large"]["url"] == "http://big"
    assert told["pools"]["small"]["recipe"]["quantization"] == "q4_0"
    assert "sk-secret" not in run.output
    as_json = CliRunner().invoke(main, ["settings", "--json"])
    assert json.loads(as_json.output)["aliases"]["auto"]["pools"] == ["small", "large"]


def test_a_mistake_is_one_line(tmp_path):
    file = tmp_path / "t.toml"
    file.write_text("[gateway]\nprot = 1\n")
    run = CliRunner().invoke(main, ["settings", "--config", str(file)])
    assert run.exit_code != 0
    assert "prot" in run.output
    assert len(run.output.strip().splitlines()) == 1
