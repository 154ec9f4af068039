"""Builds with small real commands: published whole or not at all, whatever happens in between."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engines import artifact
from engines.build import build, sweep
from engines.errors import BuildCancelled, BuildFailed
from engines.lock import exclusive
from tests.support.build_process import RECIPE, planner
from tests.support.processes import gone

ROOT = Path(__file__).parents[3]
MAKE = "echo progress 0.5 half; echo weights > $OUT"


def run(data, *scripts, progress=None, cancelled=lambda: False, **fields):
    def tell(share, text):
        if progress is not None:
            progress.append((share, text))

    return build(
        RECIPE,
        data,
        on_progress=tell,
        cancelled=cancelled,
        log=data / "logs" / "b.log",
        planner=planner(*scripts, **fields),
    )


def folders(data):
    return sorted(path.name for path in (data / "staging").iterdir() if path.is_dir())


def nothing_visible(data):
    return artifact.find(data / "artefacts", RECIPE.digest) is None and artifact.every(data / "artefacts") == []


def wait_for(look, seconds=20.0):
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_a_build_ends_in_an_artefact(tmp_path):
    source = tmp_path / "source.gguf"
    source.write_text("abc")
    made = run(tmp_path, MAKE, source=str(source), licence="MIT", tools=("gguf",))
    assert made == artifact.find(tmp_path / "artefacts", RECIPE.digest)
    artifact.verify(made, checksum=True)
    assert made.path == tmp_path / "artefacts" / RECIPE.digest / "model.gguf"
    assert made.path.read_text() == "weights\n"
    assert made.manifest.recipe["source"] == "pretend.gguf"
    assert made.manifest.licence == "MIT"
    assert set(made.manifest.tools) == {"gguf"}
    assert (made.manifest.made_from.file, made.manifest.made_from.bytes) == ("source.gguf", 3)
    assert folders(tmp_path) == []


def test_only_the_model_and_the_manifest_are_published(tmp_path):
    made = run(tmp_path, "echo big > dense.gguf; mkdir scratch; echo x > scratch/y; cp dense.gguf $OUT")
    assert sorted(path.name for path in made.folder.iterdir()) == ["manifest.json", "model.gguf"]


def test_progress_is_the_share_of_the_whole_build(tmp_path):
    seen = []
    run(
        tmp_path,
        "echo progress 0.5 half; echo progress 1 all",
        "echo noise; echo progress 0.5 more; echo x > $OUT",
        progress=seen,
    )
    assert seen == [
        (0.0, "step0: started"),
        (0.25, "step0: half"),
        (0.5, "step0: all"),
        (0.5, "step1: started"),
        (0.75, "step1: more"),
    ]


def test_everything_goes_into_the_log(tmp_path):
    run(tmp_path, "echo out; echo err >&2; echo x > $OUT")
    log = (tmp_path / "logs" / "b.log").read_text()
    assert log.startswith("$ /bin/sh -c")
    assert {"out", "err"} <= set(log.splitlines())


def test_what_is_there_is_not_built_again(tmp_path):
    first = run(tmp_path, MAKE)
    assert run(tmp_path, "exit 1") == first


def test_a_damaged_artefact_is_built_again(tmp_path):
    first = run(tmp_path, MAKE)
    first.path.write_text("cut")
    assert run(tmp_path, MAKE).path.read_text() == "weights\n"


def test_a_failure_says_what_the_command_said_last(tmp_path):
    script = "echo progress 0.9 nearly; for i in 1 2 3; do echo line $i; done; echo 'error: no such tensor' >&2; exit 3"
    with pytest.raises(BuildFailed, match="step0 ended with code 3") as caught:
        run(tmp_path, script, MAKE)
    assert caught.value.tail == ("line 1", "line 2", "line 3", "error: no such tensor")
    assert "error: no such tensor" in str(caught.value)
    assert nothing_visible(tmp_path)
    assert folders(tmp_path) == []


def test_a_command_that_dies_of_a_signal_is_a_failure(tmp_path):
    with pytest.raises(BuildFailed, match="SIGKILL"):
        run(tmp_path, "echo half > $OUT; kill -9 $$")
    assert nothing_visible(tmp_path)


def test_a_program_that_is_not_there_is_a_failure(tmp_path):
    def plan(recipe, staging, sources):
        made = planner(MAKE)(recipe, staging, sources)
        return type(made)(made.digest, (type(made.commands[0])("quantise", ("/no/such/program",)),), made.output)

    with pytest.raises(BuildFailed, match="quantise cannot be started: /no/such/program: No such file"):
        build(RECIPE, tmp_path, on_progress=lambda *_: None, cancelled=lambda: False, log=tmp_path / "l", planner=plan)


def test_a_build_without_its_output_is_a_failure(tmp_path):
    with pytest.raises(BuildFailed, match=r"made no model\.gguf"):
        run(tmp_path, "true")


def test_a_full_disk_is_seen_before_anything_runs(tmp_path):
    with pytest.raises(BuildFailed, match="may need 1000000000000 MB"):
        run(tmp_path, "touch ../../ran", disk=10**18)
    assert not (tmp_path / "ran").exists()


def test_a_failed_build_may_be_tried_again(tmp_path):
    with pytest.raises(BuildFailed):
        run(tmp_path, "exit 1")
    assert run(tmp_path, MAKE).path.is_file()


def test_cancelling_ends_the_command_and_its_children(tmp_path):
    pids = tmp_path / "pids"
    script = f"sleep 60 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; echo half > $OUT; wait"
    with pytest.raises(BuildCancelled):
        run(tmp_path, script, cancelled=pids.exists)
    wait_for(lambda: all(gone(int(pid)) for pid in pids.read_text().split()))
    assert nothing_visible(tmp_path)
    assert folders(tmp_path) == []


def test_a_command_that_does_not_listen_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("engines.command._GRACE", 0.2)
    pid = tmp_path / "pid"
    script = f"trap '' TERM; echo $$ > {pid}.new; mv {pid}.new {pid}; while :; do sleep 0.05; done"
    with pytest.raises(BuildCancelled):
        run(tmp_path, script, cancelled=pid.exists)
    assert gone(int(pid.read_text()))


def test_what_a_callback_raises_ends_the_command_too(tmp_path):
    pid = tmp_path / "pid"

    def tell(share, text):
        if "half" in text:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build(
            RECIPE,
            tmp_path,
            on_progress=tell,
            cancelled=lambda: False,
            log=tmp_path / "l",
            planner=planner(f"echo $$ > {pid}; echo progress 0.5 half; sleep 60"),
        )
    assert gone(int(pid.read_text()))
    assert folders(tmp_path) == []


def test_a_process_left_behind_does_not_hold_the_build(tmp_path, monkeypatch):
    monkeypatch.setattr("engines.command._PATIENCE", 0.2)
    pid = tmp_path / "pid"
    made = run(tmp_path, f"echo x > $OUT; sleep 60 & echo $! > {pid}")
    assert made.path.is_file()
    wait_for(lambda: gone(int(pid.read_text())))


def test_a_command_that_closes_its_output_is_waited_for(tmp_path):
    made = run(tmp_path, "exec >&- 2>&-; sleep 0.2; echo x > $OUT")
    assert made.path.is_file()


def test_two_callers_build_once(tmp_path):
    with ThreadPoolExecutor(3) as pool:
        script = f"echo ran >> {tmp_path}/runs; sleep 0.3; echo x > $OUT"
        made = list(pool.map(lambda _: run(tmp_path, script), range(3)))
    assert made[0] == made[1] == made[2]
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_a_waiting_caller_may_be_cancelled(tmp_path):
    seen = []
    with exclusive(tmp_path / "staging" / f"{RECIPE.digest}.lock"), pytest.raises(BuildCancelled, match="waited"):
        run(tmp_path, MAKE, progress=seen, cancelled=lambda: bool(seen))
    assert seen == [(0.0, "waiting for another build of the same recipe")]


def killed_build(tmp_path, script):
    """Start a build in a process of its own and kill it hard when `script` has made the file `half`."""
    command = [sys.executable, "-m", "tests.support.build_process", str(tmp_path), script]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        wait_for((tmp_path / "half").exists)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def test_a_killed_build_leaves_nothing_visible_and_the_next_one_starts_clean(tmp_path):
    script = "echo half > $OUT; echo $$ > ../../pid; touch ../../half; while sleep 0.05; do echo progress 0.5 x; done"
    killed_build(tmp_path, script)
    assert nothing_visible(tmp_path)
    assert len(folders(tmp_path)) == 1
    # the command notices that nobody reads its lines any more
    wait_for(lambda: gone(int((tmp_path / "pid").read_text())))
    made = run(tmp_path, MAKE)
    assert made.path.read_text() == "weights\n"
    assert folders(tmp_path) == []


def test_sweeping_takes_what_nobody_holds(tmp_path):
    staging = tmp_path / "staging"
    for name in ("stale-1", "held-1", "ours-1"):
        (staging / name).mkdir(parents=True)
        (staging / name / "model.gguf").write_text("half")
    free, release = threading.Event(), threading.Event()

    def hold():
        with exclusive(staging / "held.lock"):
            free.set()
            release.wait(10)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(hold)
        free.wait(10)
        with exclusive(staging / "ours.lock"):
            sweep(staging, "ours")
        assert folders(tmp_path) == ["held-1"]
        release.set()
        done.result()
    sweep(staging)
    assert folders(tmp_path) == []
    sweep(tmp_path / "no such folder")
