"""The key of our own engines: one for each data folder, whoever comes first."""

import stat
import subprocess
import sys

import pytest

from gateway.control.access import accesses, engine_key
from gateway.settings import PoolSettings, Settings, SettingsError


def test_one_key_for_a_folder_and_its_owner_alone(tmp_path):
    folder = tmp_path / "a" / "data"
    key = engine_key(folder)
    assert len(key) >= 40
    assert engine_key(folder) == key != engine_key(tmp_path / "b")
    assert stat.S_IMODE((folder / "engine-key").stat().st_mode) == 0o600
    assert [file.name for file in folder.iterdir()] == ["engine-key"]


def test_an_empty_or_readable_file_is_mended(tmp_path):
    file = tmp_path / "engine-key"
    file.write_text("")
    file.chmod(0o644)
    key = engine_key(tmp_path)
    assert key == file.read_text().strip() != ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_processes_that_start_together_agree(tmp_path):
    words = "import sys, pathlib; from gateway.control.access import engine_key; print(engine_key(pathlib.Path(sys.argv[1])))"
    several = [
        subprocess.Popen([sys.executable, "-c", words, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    keys = {process.communicate()[0].strip() for process in several}
    assert keys == {(tmp_path / "engine-key").read_text().strip()}


def test_a_folder_that_takes_no_key_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"file/engine-key: .* cannot be kept"):
        engine_key(tmp_path / "file")


def test_each_pool_has_the_key_that_its_servers_ask_for(tmp_path):
    pools = {
        "ours": PoolSettings(gguf="m"),
        "named": PoolSettings(gguf="m", key="mine"),
        "far": PoolSettings(url="http://h", key_env="FAR", ca="/ca.pem"),
        "open": PoolSettings(url="http://h"),
    }
    made = accesses(Settings(data=str(tmp_path), pools=pools), {"FAR": "theirs"})
    assert made["ours"].key == engine_key(tmp_path)
    assert (made["named"].key, made["far"].key, made["open"].key) == ("mine", "theirs", None)
    assert made["far"].ca == "/ca.pem"
    with pytest.raises(SettingsError, match=r"pools\.far\.key_env: the environment variable FAR is not set"):
        accesses(Settings(data=str(tmp_path), pools=pools), {})


def test_where_nothing_is_ours_there_is_no_key(tmp_path):
    accesses(Settings(data=str(tmp_path), pools={"far": PoolSettings(url="http://h")}), {})
    assert list(tmp_path.iterdir()) == []
