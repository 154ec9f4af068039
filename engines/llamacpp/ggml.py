"""The number formats of ggml tensors: their sizes, and the way from and to 32-bit floats (by gguf-py)."""

import math
from collections.abc import Sequence
from typing import Final, cast

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import QuantError, dequantize, quantize

from engines.errors import GgufError

F32: Final = int(GGMLQuantizationType.F32)
F16: Final = int(GGMLQuantizationType.F16)
Q4_0: Final = int(GGMLQuantizationType.Q4_0)
Q4_1: Final = int(GGMLQuantizationType.Q4_1)
Q8_0: Final = int(GGMLQuantizationType.Q8_0)

# gguf-py works on 16 rows at a time; with rows this long a call's overhead is small and the data stay in the cache.
_ROW: Final = 16384


def elements(shape: Sequence[int]) -> int:
    return math.prod(shape)


def name(kind: int) -> str:
    return _known(kind).name


def block(kind: int) -> int:
    """Elements that share their scales: rows of a tensor hold whole blocks."""
    return GGML_QUANT_SIZES[_known(kind)][0]


def bits(kind: int) -> float:
    """Bits of one element, scales included."""
    size, width = GGML_QUANT_SIZES[_known(kind)]
    return 8 * width / size


def nbytes(kind: int, shape: Sequence[int]) -> int:
    """Bytes of a whole tensor. Raises GgufError where a row is no whole number of blocks."""
    size, width = GGML_QUANT_SIZES[_known(kind)]
    if not shape or shape[0] % size:
        raise GgufError(f"A tensor of shape {tuple(shape)} cannot be {name(kind)}: rows come in blocks of {size}.")
    return elements(shape) // size * width


def convert(data: bytes, kind: int, width: int, target: int) -> bytes:
    """Whole rows of `width` elements, from one format to another."""
    rows = len(data) * block(kind) // (GGML_QUANT_SIZES[_known(kind)][1] * width)
    return to_bytes(to_floats(data, kind, (rows, width)), target)


def to_floats(data: bytes, kind: int, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Float32 of `shape` (rows, elements of a row)."""
    rows, width = shape
    wide = np.frombuffer(data, np.uint8).reshape(rows // _merge(rows, width), -1)
    try:
        values = cast("npt.NDArray[np.float32]", dequantize(wide, _known(kind)))
    except RuntimeError as error:  # how gguf-py says that it does not know the format
        raise GgufError(f"Tensors of type {name(kind)} cannot be read.") from error
    return values.reshape(shape)


def to_bytes(values: npt.NDArray[np.float32], kind: int) -> bytes:
    rows, width = values.shape
    wide = values.reshape(rows // _merge(rows, width), -1)
    try:
        return cast("npt.NDArray[np.uint8]", quantize(wide, _known(kind))).tobytes()
    except (RuntimeError, QuantError) as error:
        raise GgufError(f"Rows of {width} elements cannot be written as {name(kind)}.") from error


def _merge(rows: int, width: int) -> int:
    """How many rows make one long row; blocks lie one after another, so the bytes are the same."""
    together = 1
    while rows % (2 * together) == 0 and width * 2 * together <= _ROW:
        together *= 2
    return together


def _known(kind: int) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType(kind)
    except ValueError as error:
        raise GgufError(f"Tensor type {kind} is unknown.") from error
