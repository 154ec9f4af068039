"""`turnout up` on real models: built, served, asked, stopped. Mechanics only; what a small model says is not judged."""

import json
import re
import signal
import subprocess
import time

import pytest

from engines import artifact
from engines.llamacpp.fetch import link_or_copy
from tests.support import models
from tests.support.turnout import Up, command_line, left_of, turnout_up

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    data = models.link_into(tmp_path_factory.mktemp("real") / "data")
    with turnout_up(data, "--port", "0", seconds=120) as up:
        yield up


def chat(up: Up, model: str, content: str = "Say hi.", tokens: int = 8) -> tuple[dict, dict[str, str]]:
    body = {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": content}]}
    return up.ask("/v1/chat/completions", body, timeout=60)


def engines(up: Up) -> dict[str, int]:
    """Engine servers by the name they answer to."""
    found = {}
    for pid in up.descendants():
        if (words := command_line(pid).split()) and "engines.llamacpp.server" in words:
            found[words[words.index("-a") + 1]] = pid
    return found


def test_the_printed_line_is_answered_by_a_real_model(up):
    done = subprocess.run(["bash", "-c", up.curl], capture_output=True, timeout=60, check=True)
    answer = json.loads(done.stdout)
    assert answer["choices"][0]["message"]["content"].strip()
    assert answer["usage"]["prompt_tokens"] > 10
    assert answer["usage"]["completion_tokens"] > 0


def test_nothing_was_built_that_was_there(up):
    assert "build" not in up.errors.read_text()


def test_both_pools_answer_with_their_own_engine(up):
    for model in ("small", "large"):
        answer, headers = chat(up, model)
        assert headers["x-turnout-pool"] == model
        assert headers["x-turnout-replica"] == f"{model}-1"
        assert answer["usage"]["completion_tokens"] <= 8
    assert {"small", "large"} <= set(engines(up))


def test_embeddings_come_from_zero_and_are_of_length_one(up):
    answer, headers = up.ask("/v1/embeddings", {"model": "embed", "input": ["one", "two"]}, timeout=60)
    assert headers["x-turnout-pool"] == "embed"
    vectors = [entry["embedding"] for entry in answer["data"]]
    assert [len(vector) for vector in vectors] == [576, 576]
    assert all(abs(sum(x * x for x in vector) - 1) < 0.01 for vector in vectors)
    assert "embed" in engines(up)


def test_a_replica_that_is_killed_comes_back_under_its_name(up):
    chat(up, "small")
    before = engines(up)["small"]
    subprocess.run(["kill", "-9", str(before)], check=True)
    end = time.monotonic() + 60
    while engines(up).get("small") in (None, before):
        assert time.monotonic() < end
        time.sleep(0.1)
    answer, headers = chat(up, "small")  # it waits in the pool's queue until the new one is ready
    assert headers["x-turnout-replica"] == "small-1"
    assert answer["usage"]["completion_tokens"] > 0


def test_one_thread_each_and_small_batches_so_that_a_client_that_leaves_is_noticed(up):
    line = command_line(engines(up)["small"])
    assert "-b 64 -ub 64" in line
    assert "-t 1" in line


def test_ones_own_file_is_one_line(tmp_path):
    config = tmp_path / "turnout.toml"
    config.write_text(f'[pools.large]\ngguf = "{models.small().path}"\nslots = 2\ncontext = 2048\n')
    data = models.link_into(tmp_path / "data")
    with turnout_up(data, "--port", "0", "--config", str(config), seconds=120) as up:
        assert str(models.small().path) in command_line(engines(up)["large"])
        assert chat(up, "large")[1]["x-turnout-pool"] == "large"
        pids = up.descendants()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 0
        assert left_of(pids, 2.0) == []


def test_kill_leaves_no_engine_behind_even_while_it_works(tmp_path):
    with turnout_up(models.link_into(tmp_path / "data"), "--port", "0", seconds=120) as up:
        pids = up.descendants()
        assert {"small", "large"} <= set(engines(up))
        request = subprocess.Popen(["bash", "-c", up.curl.replace('"max_tokens": 60', '"max_tokens": 1500')])
        time.sleep(1.0)
        up.process.kill()
        up.process.wait(10)
        assert left_of(pids, 30.0) == []
        request.wait(30)


def test_the_first_start_builds_both_models_and_shows_how_far_it_is(tmp_path):
    """As on a fresh machine, except that the weights need not be fetched over the network."""
    shared, data = models.test_data(), tmp_path / "data"
    for source in (shared / "sources").rglob("*.gguf"):
        target = data / "sources" / source.relative_to(shared / "sources")
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(source, target)
    with turnout_up(data, "--port", "0", seconds=240) as up:
        told = up.errors.read_text()
        assert re.search(r"small: building \d+%", told)
        assert re.search(r"large: building \d+%: upcycle", told)
        found = {one.digest for one in artifact.every(data / "artefacts")}
        assert found == {models.SMALL.digest, models.LARGE.digest}
        assert chat(up, "large")[1]["x-turnout-pool"] == "large"
        pids = up.descendants()
    assert left_of(pids) == []
