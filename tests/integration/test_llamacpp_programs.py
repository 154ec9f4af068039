"""The llama.cpp programs on real weights: fetch, build, serve, leave."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from engines import artifact, registry
from engines.build import build
from engines.errors import BuildCancelled
from engines.llamacpp.gguf_file import read_header
from engines.llamacpp.sources import KNOWN
from engines.recipe import ServeOptions
from tests.support import models
from tests.support.processes import gone

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SOURCE = KNOWN["smollm2-135m-instruct"]


class Replica:
    """A running server of ours."""

    def __init__(self, process, url, log):
        self.process = process
        self.url = url
        self.log = log

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return (
                json.loads(reply.read())
                if reply.headers.get_content_type() == "application/json"
                else reply.read().decode()
            )

    def post(self, path, **body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)

    def resident(self):
        """Bytes of memory in use."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


@contextlib.contextmanager
def serving(tmp_path, model, *, environ=None, **options):
    command = registry.serve("llamacpp", ServeOptions(name="smol", model=str(model), context=4096, **options))
    log = tmp_path / "server.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environ or {})},
        )
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), log.read_text()
        yield Replica(process, line.split()[-1], log)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture(scope="module")
def small():
    return models.small()


@pytest.fixture(scope="module")
def replica(small, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("replica"), small.path) as running:
        yield running


def test_fetching_brings_the_checked_file(tmp_path):
    models.small()
    words = [sys.executable, "-m", "engines.llamacpp.fetch", SOURCE.name, str(models.folder() / "sources")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith("progress 1.000")
    assert artifact.sha256_of(SOURCE.at(models.folder() / "sources")) == SOURCE.sha256


def test_both_models_are_built_and_whole():
    for made in (models.small(), models.large()):
        artifact.verify(made, checksum=True)
        assert made.manifest.made_from.sha256 == SOURCE.sha256
        assert made.manifest.licence == "Apache-2.0"


def test_the_large_model_is_a_mixture_with_the_same_tokenizer():
    dense, mixture = read_header(SOURCE.at(models.test_data() / "sources")), read_header(models.large().path)
    assert mixture.number("llama.expert_count") == 8
    assert mixture.number("llama.expert_used_count") == 2
    for key, value in dense.metadata.items():
        if key.startswith("tokenizer."):
            assert mixture.metadata[key] == value


def test_another_data_folder_gets_the_weights_without_a_build(tmp_path):
    data = models.link_into(tmp_path / "data")
    for recipe in (models.SMALL, models.LARGE):
        made = build(recipe, data, on_progress=lambda *_: None, cancelled=lambda: False, log=tmp_path / "log")
        assert made.path.stat().st_ino == artifact.find(models.folder() / "artefacts", recipe.digest).path.stat().st_ino


def test_cancelling_a_real_build_leaves_nothing(tmp_path):
    data = models.link_into(tmp_path / "data")
    recipe = models.SMALL.__class__(source=SOURCE.name, experts=4)
    seen = []
    with pytest.raises(BuildCancelled):
        build(
            recipe,
            data,
            on_progress=lambda *step: seen.append(step),
            cancelled=lambda: len(seen) > 20,
            log=tmp_path / "l",
        )
    assert artifact.find(data / "artefacts", recipe.digest) is None
    assert [path for path in (data / "staging").iterdir() if path.is_dir()] == []


def test_a_chat_is_answered_with_its_numbers(replica):
    answer = replica.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": "Say hi"}], max_tokens=8, temperature=0
    )
    assert answer["choices"][0]["message"]["content"]
    assert 1 <= answer["usage"]["completion_tokens"] <= 8
    assert answer["timings"]["predicted_per_second"] > 0


def test_a_prompt_that_comes_again_is_held(replica):
    messages = [{"role": "user", "content": "The sea is wide. " * 20 + "Is it?"}]
    replica.post("/v1/chat/completions", messages=messages, max_tokens=1)
    again = replica.post("/v1/chat/completions", messages=messages, max_tokens=1)
    usage = again["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 8


def test_slots_name_and_metrics_are_open(replica):
    slots = replica.get("/slots")
    assert len(slots) == 4
    assert {slot["n_ctx"] for slot in slots} == {1024}
    assert replica.get("/v1/models")["data"][0]["id"] == "smol"
    assert "llamacpp:requests_processing" in replica.get("/metrics")
    assert replica.get("/health") == {"status": "ok"}


def test_with_a_key_nobody_is_let_in_without_it(small, tmp_path):
    with serving(tmp_path, small.path, environ={"TURNOUT_ENGINE_KEY": "hush"}) as replica:
        assert replica.get("/health") == {"status": "ok"}
        for path in ("/slots", "/metrics"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                replica.get(path)
            with caught.value as error:
                assert error.code == 401
            request = urllib.request.Request(replica.url + path, headers={"authorization": "Bearer hush"})
            with urllib.request.urlopen(request, timeout=60) as reply:
                assert reply.status == 200
        with pytest.raises(urllib.error.HTTPError) as caught:
            replica.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=1)
        with caught.value as error:
            assert error.code == 401


def test_texts_become_vectors_of_length_one(small, tmp_path):
    with serving(tmp_path, small.path, embeddings=True) as replica:
        texts = ["A cat sits on the mat.", "A kitten is on the rug.", "word " * 600]
        answer = replica.post("/v1/embeddings", input=texts, model="smol")
    vectors = [entry["embedding"] for entry in answer["data"]]
    assert [len(vector) for vector in vectors] == [576, 576, 576]
    assert all(math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-3) for vector in vectors)
    assert answer["usage"]["prompt_tokens"] > 600  # more than a batch of chat

    def likeness(one, other):
        return sum(a * b for a, b in zip(one, other, strict=True))

    assert likeness(vectors[0], vectors[1]) > likeness(vectors[0], vectors[2])


@pytest.mark.parametrize("reason", ["SIGTERM", "SIGINT", "end of stdin"])
def test_it_leaves_when_told_and_nothing_stays(small, tmp_path, reason):
    with serving(tmp_path, small.path) as replica:
        if reason == "end of stdin":
            replica.process.stdin.close()
        else:
            replica.process.send_signal(signal.Signals[reason])
        assert replica.process.wait(20) == 0
        assert gone(replica.process.pid)
        with pytest.raises(urllib.error.URLError):
            replica.get("/health")


def stream(replica, got):
    body = json.dumps({"prompt": "Once", "n_predict": 120, "stream": True, "ignore_eos": True}).encode()
    request = urllib.request.Request(replica.url + "/completion", body, {"content-type": "application/json"})
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(request, timeout=60) as reply:
        got.extend(line for line in reply if line.startswith(b"data: "))


def begin(replica):
    got = []
    thread = threading.Thread(target=stream, args=(replica, got))
    thread.start()
    end = time.monotonic() + 30
    while not any(slot["is_processing"] for slot in replica.get("/slots")):
        assert time.monotonic() < end
        time.sleep(0.02)
    return thread, got


def test_a_running_answer_is_finished_first(small, tmp_path):
    with serving(tmp_path, small.path, drain=60.0) as replica:
        thread, got = begin(replica)
        replica.process.terminate()
        assert replica.process.wait(60) == 0
        thread.join(20)
    assert json.loads(got[-1][6:])["stop"] is True
    assert len(got) > 100


def test_a_second_signal_leaves_at_once(small, tmp_path):
    with serving(tmp_path, small.path, drain=600.0) as replica:
        thread, got = begin(replica)
        replica.process.terminate()
        time.sleep(0.3)
        replica.process.terminate()
        assert replica.process.wait(20) == 0
        thread.join(20)
    assert not any(json.loads(line[6:])["stop"] for line in got)


def test_a_killed_parent_leaves_no_server(small, tmp_path):
    argv = registry.serve("llamacpp", ServeOptions(name="smol", model=str(small.path), context=1024)).argv
    script = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen({list(argv)!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.kill()
    end = time.monotonic() + 20
    while not gone(child):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_signal_while_loading_is_heard(small, tmp_path):
    argv = registry.serve("llamacpp", ServeOptions(name="smol", model=str(models.large().path), context=1024)).argv
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while "xllamacpp" not in Path(f"/proc/{process.pid}/maps").read_text():
            assert time.monotonic() < end
            time.sleep(0.005)
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()


@pytest.mark.parametrize("model", ["no such file", "not a model"])
def test_a_bad_model_ends_it_with_a_reason_in_the_log(tmp_path, model):
    path = tmp_path / "bad.gguf"
    if model == "not a model":
        path.write_bytes(os.urandom(1000))
    argv = registry.serve("llamacpp", ServeOptions(name="smol", model=str(path))).argv
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.wait(60) == 1  # its input is still open: the model is the reason
        words, errors = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert words == ""
    assert f"error: {path} on 127.0.0.1:0: " in errors
    assert len(errors.splitlines()) > 1  # the engine's own reason stands above


def test_what_the_builds_gain_is_printed(small, tmp_path, capsys):
    """Speed depends on the machine: it is shown, never asserted."""
    packaged = SOURCE.at(models.test_data() / "sources")
    for name, model in (("packaged Q4_1", packaged), ("Q4_0", small.path), ("mixture of 8", models.large().path)):
        start = time.monotonic()
        with serving(tmp_path, model) as replica:
            ready = time.monotonic() - start
            answer = replica.post(
                "/completion", prompt="Once upon a time there was " * 20, n_predict=64, ignore_eos=True
            )
            seen = answer["timings"]
            with capsys.disabled():
                print(
                    f"\n{name}: {model.stat().st_size / 1e6:.0f} MB, ready in {ready:.2f} s, "
                    f"prefill {seen['prompt_per_second']:.0f} tok/s, decode {seen['predicted_per_second']:.0f} tok/s, "
                    f"RSS {replica.resident() / 1e6:.0f} MB"
                )
            assert seen["predicted_n"] == 64
