"""Take a model file into an artefact unchanged: `python -m engines.llamacpp.adopt SRC DST`.

With --link both names share the bytes, for sources that nobody writes to; otherwise it copies.
"""

import argparse
import sys
from pathlib import Path

from engines.llamacpp import program
from engines.llamacpp.fetch import link_or_copy
from engines.llamacpp.gguf_file import read_header
from engines.progress import report

_PIECE = 1 << 24  # bytes


def adopt(source: Path, target: Path, *, link: bool) -> Path:
    """Returns `target`. Raises GgufError for what is no whole GGUF file."""
    read_header(source)
    if link:
        link_or_copy(source, target)
        return target
    done, size = 0, source.stat().st_size
    with source.open("rb") as file, target.open("wb") as out:
        while piece := file.read(_PIECE):
            done += out.write(piece)
            report(done / size, "copying")
    return target


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engines.llamacpp.adopt")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--link", action="store_true")
    given = parser.parse_args(arguments)
    return program.run(lambda: adopt(given.source, given.target, link=given.link))


if __name__ == "__main__":
    sys.exit(main())
