"""Write a GGUF model's weights in another number format: `python -m engines.llamacpp.requantise SRC DST --type q4_0`.

Matrices take the new format, in pieces, so that memory stays near one piece however large the model is. Norms, biases,
routers and other small tensors stay as they are. The output matrix (the token embedding where both are one) decides
over every token: it never falls below Q8_0, as in llama.cpp's own quantiser, unless the source holds less already.
Weights that were quantised before cannot become better: a wider format then is for speed and mechanics alone.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from engines.errors import GgufError
from engines.llamacpp import ggml, program
from engines.llamacpp.gguf_file import Header, NewTensor, Tensor, read_header, read_rows, uint32_value, write
from engines.progress import report

# general.file_type (llama.h, enum llama_ftype) and the tensors' format, by the name of llama-quantize
FILE_TYPES: Final[Mapping[str, int]] = {"f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7}
FORMATS: Final[Mapping[str, int]] = {"f16": ggml.F16, "q4_0": ggml.Q4_0, "q4_1": ggml.Q4_1, "q8_0": ggml.Q8_0}

_QUANTISATION_VERSION = 2  # ggml.h, GGML_QNT_VERSION
_PIECE = 1 << 20  # elements
# Small or touchy tensors that llama-quantize leaves alone, besides those with one dimension (llama-quant.cpp).
_STAYS = re.compile(r"_norm\.weight$|ffn_gate_inp|position_embd|token_types|ssm_conv1d|shortconv|time_mix|altup|laurel")


def target_format(tensor: Tensor, wanted: int, *, output: bool) -> int:
    """The format one tensor gets, given the format wanted for the model."""
    if len(tensor.shape) < 2 or not tensor.name.endswith(".weight") or _STAYS.search(tensor.name):  # noqa: PLR2004
        return tensor.kind
    if output and ggml.bits(wanted) < ggml.bits(ggml.Q8_0):
        if ggml.bits(tensor.kind) <= ggml.bits(ggml.Q8_0):
            return tensor.kind
        wanted = ggml.Q8_0
    return tensor.kind if tensor.width % ggml.block(wanted) else wanted


def requantise(source: Path, target: Path, name: str, progress: Callable[[float, str], None]) -> Path:
    """Write `source` to `target`, which it returns, in format `name`, a key of FORMATS. Raises GgufError."""
    header = read_header(source)
    if header.number("split.count") not in (None, 0, 1):
        raise GgufError(f"{source}: one part of a split model; join the parts first.")
    total = sum(tensor.bytes for tensor in header.tensors)
    metadata = header.metadata | {
        "general.file_type": uint32_value(FILE_TYPES[name]),
        "general.quantization_version": uint32_value(_QUANTISATION_VERSION),
    }
    with source.open("rb") as file:
        planned = list(_plan(file, header, FORMATS[name], lambda done: progress(done / total, f"weights as {name}")))
        write(target, metadata, planned)
    return target


def _plan(file: BinaryIO, header: Header, wanted: int, read: Callable[[int], None]) -> Iterator[NewTensor]:
    names = {tensor.name for tensor in header.tensors}
    last = "output.weight" if "output.weight" in names else "token_embd.weight"
    done = 0
    for tensor in header.tensors:
        kind = target_format(tensor, wanted, output=tensor.name == last)
        yield NewTensor(tensor.name, tensor.shape, kind, partial(_pieces, file, tensor, kind, partial(read, done)))
        done += tensor.bytes


def _pieces(file: BinaryIO, tensor: Tensor, kind: int, begin: Callable[[], None]) -> Iterator[bytes]:
    begin()
    rows = max(1, _PIECE // tensor.width)
    for first in range(0, tensor.rows, rows):
        data = read_rows(file, tensor, first, min(rows, tensor.rows - first))
        yield data if kind == tensor.kind else ggml.convert(data, tensor.kind, tensor.width, kind)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engines.llamacpp.requantise")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--type", required=True, choices=sorted(FORMATS))
    given = parser.parse_args(arguments)
    return program.run(lambda: requantise(given.source, given.target, given.type, report))


if __name__ == "__main__":
    sys.exit(main())
