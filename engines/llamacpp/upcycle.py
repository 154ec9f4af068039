"""Make a mixture of experts of a dense GGUF model: `python -m engines.llamacpp.upcycle SRC DST --experts 8 --used 2`.

Every feed-forward block is copied into equal experts, bytes as they are, and a seeded random router is added, in the
layout that architecture `llama` has for Mixtral. The router's weights over the chosen experts add up to one, so the
function is the dense model's up to rounding: the file costs what a mixture costs and answers no better.
The idea (there with training afterwards): Komatsuzaki et al., "Sparse Upcycling", https://arxiv.org/abs/2212.05055.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from engines.errors import GgufError
from engines.llamacpp import ggml, program
from engines.llamacpp.gguf_file import (
    Header,
    NewTensor,
    Tensor,
    Value,
    read_header,
    read_rows,
    text_value,
    uint32_value,
    write,
)
from engines.progress import report

_FEED_FORWARD = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)\.weight")
_ROUTER_SPREAD = 0.5  # standard deviation of the router's weights
_PIECE = 1 << 24  # bytes


def upcycle(
    source: Path, target: Path, experts: int, used: int, seed: int, progress: Callable[[float, str], None]
) -> Path:
    """Write the mixture to `target`, which it returns. Raises GgufError unless the source is a dense llama."""
    header = read_header(source)
    width = _check(source, header, experts, used)
    metadata = _metadata(header, experts, used)
    with source.open("rb") as file:
        planned = list(_plan(file, header, width, experts, np.random.default_rng(seed)))
        total = sum(ggml.nbytes(tensor.kind, tensor.shape) for tensor in planned)
        write(target, metadata, planned, lambda done: progress(done / total, f"{experts} experts"))
    return target


def _check(source: Path, header: Header, experts: int, used: int) -> int:
    """The model's width, once it is plain that the model can be worked on."""
    if not 1 <= used <= experts:
        raise GgufError(f"{used} of {experts} experts cannot be used: choose 1 to {experts}.")
    architecture = header.text("general.architecture")
    if architecture != "llama":
        raise GgufError(f"{source}: needs a model of architecture llama, not {architecture}.")
    if header.number("llama.expert_count"):
        raise GgufError(f"{source}: is a mixture of experts already.")
    if header.number("split.count") not in (None, 0, 1):
        raise GgufError(f"{source}: one part of a split model; join the parts first.")
    if not any(_FEED_FORWARD.fullmatch(tensor.name) for tensor in header.tensors):
        raise GgufError(f"{source}: holds no feed-forward blocks.")
    width = header.number("llama.embedding_length")
    if not isinstance(width, int):
        raise GgufError(f"{source}: llama.embedding_length is missing.")
    return width


def _metadata(header: Header, experts: int, used: int) -> dict[str, Value]:
    metadata = dict(header.metadata)
    metadata.pop("general.size_label", None)  # was the dense model's
    title = f"{header.text('general.name') or 'model'}, upcycled to {experts} experts, top {used}"
    return metadata | {
        "general.name": text_value(title),
        "llama.expert_count": uint32_value(experts),
        "llama.expert_used_count": uint32_value(used),
    }


def _plan(file: BinaryIO, header: Header, width: int, experts: int, random: np.random.Generator) -> Iterator[NewTensor]:
    for tensor in header.tensors:
        match = _FEED_FORWARD.fullmatch(tensor.name)
        if match is None:
            yield NewTensor(tensor.name, tensor.shape, tensor.kind, partial(_copies, file, tensor, 1))
            continue
        layer, part = match.groups()
        name = f"blk.{layer}.ffn_{part}_exps.weight"
        yield NewTensor(name, (*tensor.shape, experts), tensor.kind, partial(_copies, file, tensor, experts))
        if part == "gate":
            router = random.normal(0.0, _ROUTER_SPREAD, (experts, width)).astype("<f4").tobytes()
            yield NewTensor(f"blk.{layer}.ffn_gate_inp.weight", (width, experts), ggml.F32, partial(_once, router))


def _copies(file: BinaryIO, tensor: Tensor, count: int) -> Iterator[bytes]:
    rows = max(1, _PIECE // tensor.row_bytes)
    for _ in range(count):
        for first in range(0, tensor.rows, rows):
            yield read_rows(file, tensor, first, min(rows, tensor.rows - first))


def _once(data: bytes) -> tuple[bytes]:
    return (data,)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engines.llamacpp.upcycle")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--used", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    return program.run(lambda: upcycle(given.source, given.target, given.experts, given.used, given.seed, report))


if __name__ == "__main__":
    sys.exit(main())
