"""The lock: alone among threads and processes, and gone with its owner."""

import subprocess
import sys
import threading

import pytest

from engines.lock import exclusive, exclusive_if_free

HOLD = "import sys; from pathlib import Path; from engines.lock import exclusive\nwith exclusive(Path(sys.argv[1])):\n print('held', flush=True); sys.stdin.read()"


def test_threads_take_turns(tmp_path):
    inside, most, lock = [], [], threading.Lock()

    def work():
        with exclusive(tmp_path / "a.lock"):
            with lock:
                inside.append(1)
                most.append(len(inside))
            with lock:
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most == [1, 1, 1, 1]


def test_whoever_waits_is_asked_and_may_give_up(tmp_path):
    asked = []

    def waiting():
        asked.append(1)
        if len(asked) == 2:
            raise TimeoutError

    with exclusive(tmp_path / "a.lock"), pytest.raises(TimeoutError), exclusive(tmp_path / "a.lock", waiting):
        pytest.fail("two hold it")
    with exclusive_if_free(tmp_path / "a.lock") as free:
        assert free


def test_a_look_without_waiting(tmp_path):
    with (
        exclusive_if_free(tmp_path / "deep" / "a.lock") as first,
        exclusive_if_free(tmp_path / "deep" / "a.lock") as second,
    ):
        assert first
        assert not second


def test_a_killed_owner_loses_it(tmp_path):
    path = tmp_path / "a.lock"
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with owner:
        assert owner.stdout.readline() == b"held\n"
        with exclusive_if_free(path) as free:
            assert not free
        owner.kill()
        owner.wait()
        with exclusive(path):
            pass
