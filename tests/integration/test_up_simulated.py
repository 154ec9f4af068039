"""`turnout up --simulated` as a real process: what it prints works, and nothing of it is left afterwards."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.turnout import Up, command_line, descendants, left_of, run_turnout, turnout_up

pytestmark = pytest.mark.timeout(180)
SIMULATED = ("--simulated", "--port", "0")


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    with turnout_up(tmp_path_factory.mktemp("up") / "data", *SIMULATED) as up:
        yield up


def chat(up: Up, model: str, content: str = "hello", **more) -> tuple[dict, dict[str, str]]:
    body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": content}], **more}
    return up.ask("/v1/chat/completions", body)


def test_the_printed_line_works_as_it_stands(up):
    done = subprocess.run(["bash", "-c", up.curl], capture_output=True, timeout=30, check=True)
    answer = json.loads(done.stdout)
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] > 0


def test_every_pool_and_the_alias_answer(up):
    for model in ("small", "large", "auto"):
        answer, headers = chat(up, model)
        assert answer["choices"][0]["finish_reason"]
        assert headers["x-turnout-pool"] in ("small", "large")
        if model != "auto":
            assert headers["x-turnout-pool"] == model
    models = {entry["id"] for entry in up.ask("/v1/models")[0]["data"]}
    assert {"small", "large", "embed", "auto"} <= models


def test_embeddings_come_from_zero(up):
    assert not [pid for pid in up.descendants() if "--model embed" in command_line(pid)]
    answer, headers = up.ask("/v1/embeddings", {"model": "embed", "input": "hello"})
    assert len(answer["data"][0]["embedding"]) > 0
    assert headers["x-turnout-pool"] == "embed"
    assert [pid for pid in up.descendants() if "--model embed" in command_line(pid)]


def test_what_lies_in_the_data_folder_is_the_owners_alone(up):
    assert up.data.stat().st_mode & 0o777 == 0o700
    for name in ("key", "console-token", "engine-key", "turnout.toml"):
        assert (up.data / name).stat().st_mode & 0o777 == 0o600
    assert (up.data / "key").read_text().strip() == up.key
    assert {"gateway.log", "control.log", "worker.log", "small-1.log"} <= {f.name for f in (up.data / "logs").iterdir()}


def test_no_secret_is_in_any_command_line_or_log(up):
    secrets = [up.key, *((up.data / name).read_text().strip() for name in ("console-token", "engine-key"))]
    lines = [command_line(pid) for pid in up.descendants()]
    logs = [file.read_text() for file in (up.data / "logs").glob("*.log")]
    assert lines
    assert not [text for text in (*lines, *logs) for secret in secrets if secret in text]


def test_without_the_key_nobody_is_let_in(up):
    request = urllib.request.Request(f"{up.url}/v1/models", headers={"Authorization": "Bearer sk-wrong"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    with caught.value as error:
        assert error.code == 401


def test_an_engine_lets_in_nobody_but_us(up):
    url = re.findall(r"listening on (http://\S+)", (up.data / "logs" / "small-1.log").read_text())[-1]
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{url}/slots", timeout=10)
    with caught.value as error:
        assert error.code == 401
    key = (up.data / "engine-key").read_text().strip()
    request = urllib.request.Request(f"{url}/slots", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        assert reply.status == 200


def test_a_second_one_on_the_same_folder_is_refused(up):
    second = run_turnout("up", "--simulated", "--port", "0", "--data", str(up.data))
    assert second.returncode == 2
    assert "already running on the data folder" in second.stderr
    assert str(up.process.pid) in second.stderr


def test_a_taken_port_is_told_before_anything_starts(up, tmp_path):
    port = up.url.rpartition(":")[2]
    second = run_turnout("up", "--simulated", "--port", port, "--data", str(tmp_path / "other"))
    assert second.returncode == 2
    assert f"Port {port} on 127.0.0.1 is taken. Choose another: turnout up --port" in second.stderr


@pytest.mark.parametrize("part", ["gateway", "control", "worker"])
def test_a_part_that_is_killed_is_told_and_comes_back(up, part):
    (before,) = _pids(up, part)
    os.kill(before, signal.SIGKILL)
    _wait(lambda: [pid for pid in _pids(up, part) if pid != before], "started again")
    _wait(lambda: f"{part} killed by SIGKILL; starting it again" in up.errors.read_text(), "told")
    _wait(lambda: _answers(up), "answers again")


def _pids(up: Up, part: str) -> list[int]:
    return [pid for pid in up.descendants() if f"gateway.cli {part} " in command_line(pid)]


def _answers(up: Up) -> bool:
    try:
        return bool(chat(up, "small")[0]["choices"])
    except (urllib.error.URLError, ConnectionError):
        return False


def _wait(look, what: str, seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, f"not {what} in {seconds} s"
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_in_order(tmp_path, number):
    with turnout_up(tmp_path / "data", *SIMULATED) as up:
        pids = up.descendants()
        assert len(pids) >= 5  # three parts and two replicas
        up.process.send_signal(number)
        assert up.process.wait(40) == 0
        assert left_of(pids, 2.0) == []
    assert "Traceback" not in up.errors.read_text()
    assert "exited" not in up.errors.read_text()


def test_the_next_start_after_a_kill_waits_and_finds_its_key(tmp_path):
    data = tmp_path / "data"
    with turnout_up(data, *SIMULATED) as up:
        key, pids = up.key, up.descendants()
        up.process.kill()
        up.process.wait(10)
        port = up.url.rpartition(":")[2]
        with turnout_up(data, "--simulated", "--port", port) as again:  # at once: the old parts may still be leaving
            assert left_of(pids) == []
            assert again.key == key
            assert chat(again, "small")[0]["choices"]


def test_a_killed_one_leaves_nothing_behind(tmp_path):
    with turnout_up(tmp_path / "data", *SIMULATED) as up:
        pids = up.descendants()
        up.process.kill()
        up.process.wait(10)
        assert left_of(pids) == []


def test_a_port_may_be_chosen_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNOUT__GATEWAY__PORT", "0")
    with turnout_up(tmp_path / "data", "--simulated") as up:
        assert chat(up, "small")[0]["choices"]


def test_a_killed_control_loop_leaves_no_replica_behind(tmp_path):
    with turnout_up(tmp_path / "data", *SIMULATED) as up:
        (control,) = _pids(up, "control")
        replicas = descendants(control)
        assert len(replicas) == 2
        os.kill(control, signal.SIGKILL)
        assert left_of(replicas) == []


def test_the_second_signal_does_not_wait(tmp_path):
    with turnout_up(tmp_path / "data", *SIMULATED) as up:
        pids = up.descendants()
        with _stream(up):
            up.process.send_signal(signal.SIGINT)
            time.sleep(1.0)
            assert up.process.poll() is None  # the answer that runs gets its time
            up.process.send_signal(signal.SIGINT)
            began = time.monotonic()
            up.process.wait(20)
            assert time.monotonic() - began < 8
        assert left_of(pids) == []


def _stream(up: Up) -> socket.socket:
    """A streamed answer that takes long, already begun."""
    host, _, port = up.url.removeprefix("http://").partition(":")
    body = json.dumps(
        {"model": "small", "stream": True, "max_tokens": 2000, "messages": [{"role": "user", "content": "go"}]}
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {up.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall((head + body).encode())
    assert b"200" in connection.recv(100)
    return connection


def test_a_pool_grows_while_requests_wait_and_every_one_is_answered(tmp_path):
    config = tmp_path / "turnout.toml"
    config.write_text("[pools.small]\nmaximum = 2\nslots = 1\n[pools.large]\nminimum = 0\nmaximum = 0\n")
    with turnout_up(tmp_path / "data", *SIMULATED, "--config", str(config)) as up, ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(chat, up, "small", f"number {n}", max_tokens=300) for n in range(4)]
        _wait(lambda: sum("--model small" in command_line(pid) for pid in up.descendants()) == 2, "grown")
        replicas = {headers["x-turnout-replica"] for _, headers in (one.result(60) for one in asked)}
        assert replicas == {"small-1", "small-2"}
        assert "large" not in {unit.name.partition("-")[0] for unit in (up.data / "logs").iterdir()}
        with closing(sqlite3.connect(up.data / "turnout.db")) as db:
            reasons = [row[0] for row in db.execute("SELECT reason FROM scale_decisions WHERE pool = 'small'")]
        assert any("waiting on 1 slots" in reason for reason in reasons)


def test_a_pool_whose_server_is_away_does_not_keep_the_others_from_serving(tmp_path):
    config = tmp_path / "turnout.toml"
    config.write_text('[pools.large]\nurl = "http://127.0.0.1:9"\n')
    with turnout_up(tmp_path / "data", *SIMULATED, "--config", str(config)) as up:
        assert "! large: http://127.0.0.1:9" in up.text
        assert chat(up, "small")[0]["choices"]


def test_a_pool_is_pointed_at_another_server_in_one_line(up, tmp_path):
    """The other server is a Turnout itself: it speaks OpenAI, wants a key, and is asked for its model's name."""
    key = tmp_path / "their-key"
    key.write_text(up.key)
    config = tmp_path / "turnout.toml"
    config.write_text(f'[pools.large]\nurl = "{up.url}"\nkey_file = "{key}"\nmodel = "large"\n')
    with turnout_up(tmp_path / "data", *SIMULATED, "--config", str(config)) as second:
        answer, headers = chat(second, "large")
        assert answer["choices"][0]["message"]["content"]
        assert headers["x-turnout-pool"] == "large"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[pools.small.recipe]\nquantization = "q9"\n', "pools.small.recipe"),
        ('[pools.small]\ngguf = "/no/such.gguf"\n', "pools.small.gguf: there is no file /no/such.gguf"),
        ('[pools.mine]\ntier = "large"\n', "pools.mine: say where its answers come from"),
        ("[gateway]\nprot = 1\n", "prot"),
        ("[pools.small\n", "not valid TOML"),
    ],
)
def test_a_mistake_in_the_settings_is_one_line(tmp_path, text, words):
    config = tmp_path / "turnout.toml"
    config.write_text(text)
    done = run_turnout("up", "--port", "0", "--data", str(tmp_path / "data"), "--config", str(config))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not Path(tmp_path / "data" / "turnout.toml").exists()
