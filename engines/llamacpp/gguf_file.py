"""The GGUF container, read and written: metadata stays the bytes it was, tensors are read in pieces.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
gguf-py's own reader makes a numpy array of every token of the vocabulary, which takes longer than the rest of a build.
"""

import mmap
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

import msgspec

from engines.errors import GgufError
from engines.llamacpp import ggml

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32


class Kind(IntEnum):
    """The types of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_FORMATS: Mapping[int, str] = {
    Kind.UINT8: "<B",
    Kind.INT8: "<b",
    Kind.UINT16: "<H",
    Kind.INT16: "<h",
    Kind.UINT32: "<I",
    Kind.INT32: "<i",
    Kind.FLOAT32: "<f",
    Kind.BOOL: "<?",
    Kind.UINT64: "<Q",
    Kind.INT64: "<q",
    Kind.FLOAT64: "<d",
}


class Value(msgspec.Struct, frozen=True):
    """One metadata value, as it stands in the file."""

    kind: int
    raw: bytes

    @property
    def number(self) -> int | float | None:
        """None for text and lists."""
        form = _FORMATS.get(self.kind)
        return None if form is None else struct.unpack(form, self.raw)[0]

    @property
    def text(self) -> str | None:
        """None for all but text."""
        return self.raw[8:].decode() if self.kind == Kind.STRING else None


class Tensor(msgspec.Struct, frozen=True):
    """Where one tensor lies. `shape` is in the file's order: the width of a row first."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int  # from the start of the file
    bytes: int

    @property
    def width(self) -> int:
        return self.shape[0]

    @property
    def rows(self) -> int:
        return ggml.elements(self.shape) // self.width

    @property
    def row_bytes(self) -> int:
        return self.bytes // self.rows


class Header(msgspec.Struct, frozen=True):
    """All of a file but its weights."""

    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]

    def text(self, key: str) -> str | None:
        return self.metadata[key].text if key in self.metadata else None

    def number(self, key: str) -> int | float | None:
        return self.metadata[key].number if key in self.metadata else None


class NewTensor(msgspec.Struct, frozen=True):
    """A tensor to be written. `pieces` is called when its turn has come, so that only a piece is in memory."""

    name: str
    shape: tuple[int, ...]
    kind: int
    pieces: Callable[[], Iterable[bytes]]


def text_value(text: str) -> Value:
    return Value(Kind.STRING, _string(text))


def uint32_value(number: int) -> Value:
    return Value(Kind.UINT32, struct.pack("<I", number))


def read_header(path: Path) -> Header:
    """Raises GgufError for what is no whole GGUF file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data, path).header()
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise GgufError(f"{path}: cannot be read: {error}") from error


def read_rows(file: BinaryIO, tensor: Tensor, first: int, count: int) -> bytes:
    """The bytes of `count` rows from row `first` on."""
    file.seek(tensor.offset + first * tensor.row_bytes)
    return file.read(count * tensor.row_bytes)


def write(
    path: Path, metadata: Mapping[str, Value], tensors: Sequence[NewTensor], wrote: Callable[[int], None] | None = None
) -> None:
    """Write a whole file. `wrote` is told the bytes of weights written so far, after each tensor."""
    alignment = _alignment(metadata)
    sizes = [ggml.nbytes(tensor.kind, tensor.shape) for tensor in tensors]
    with path.open("wb") as out:
        out.write(_MAGIC + struct.pack("<IQQ", _VERSIONS[-1], len(tensors), len(metadata)))
        for key, value in metadata.items():
            out.write(_string(key) + struct.pack("<I", value.kind) + value.raw)
        offset = 0
        for tensor, size in zip(tensors, sizes, strict=True):
            dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
            out.write(_string(tensor.name) + dims + struct.pack("<IQ", tensor.kind, offset))
            offset += size + -size % alignment
        done = 0
        for tensor, size in zip(tensors, sizes, strict=True):
            out.write(bytes(-out.tell() % alignment))
            written = sum(out.write(piece) for piece in tensor.pieces())
            if written != size:
                raise GgufError(f"{tensor.name}: {written} bytes instead of {size}.")
            done += size
            if wrote is not None:
                wrote(done)
        out.write(bytes(-out.tell() % alignment))


class _Cursor:
    """A place in a mapped file that moves on as values are taken."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def header(self) -> Header:
        try:
            if self.data[:4] != _MAGIC:
                raise GgufError(f"{self.path}: not a GGUF file.")
            self.at = 4
            version = self.take("<I")
            if version not in _VERSIONS:
                raise GgufError(f"{self.path}: GGUF version {version} is not one of {_VERSIONS}.")
            tensors, values = self.take("<Q"), self.take("<Q")
            metadata = dict(self.value() for _ in range(values))
            found = [self.tensor() for _ in range(tensors)]
            return Header(metadata, self.placed(found, _alignment(metadata)))
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise GgufError(f"{self.path}: damaged or cut short near byte {self.at}.") from error

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def string(self) -> str:
        size = self.take("<Q")
        self.at += size
        if self.at > len(self.data):
            raise struct.error
        return self.data[self.at - size : self.at].decode()

    def value(self) -> tuple[str, Value]:
        key, kind = self.string(), self.take("<I")
        start = self.at
        self.skip(kind)
        return key, Value(kind, self.data[start : self.at])

    def skip(self, kind: int) -> None:
        """Step over a value without making anything of it."""
        if kind == Kind.STRING:
            self.skip_strings(1)
        elif kind == Kind.ARRAY:
            inner, count = self.take("<I"), self.take("<Q")
            if inner == Kind.STRING:
                self.skip_strings(count)
            elif inner == Kind.ARRAY:
                for _ in range(count):
                    self.skip(inner)
            else:
                self.at += count * struct.calcsize(_FORMATS[inner])
        else:
            self.at += struct.calcsize(_FORMATS[kind])
        if self.at > len(self.data):
            raise struct.error

    def skip_strings(self, count: int) -> None:
        size, data, at = struct.Struct("<Q"), self.data, self.at
        for _ in range(count):
            at += 8 + size.unpack_from(data, at)[0]
        self.at = at

    def tensor(self) -> Tensor:
        name = self.string()
        shape = tuple(self.take("<Q") for _ in range(self.take("<I")))
        kind = self.take("<I")
        return Tensor(name, shape, kind, self.take("<Q"), ggml.nbytes(kind, shape))

    def placed(self, tensors: Sequence[Tensor], alignment: int) -> tuple[Tensor, ...]:
        """Offsets stand in the file from the start of the weights; make them from the start of the file."""
        start = self.at + -self.at % alignment
        placed = tuple(msgspec.structs.replace(tensor, offset=start + tensor.offset) for tensor in tensors)
        for tensor in placed:
            if tensor.offset + tensor.bytes > len(self.data):
                raise GgufError(f"{self.path}: cut short: {tensor.name} ends beyond the end of the file.")
        return placed


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _alignment(metadata: Mapping[str, Value]) -> int:
    value = metadata["general.alignment"].number if "general.alignment" in metadata else _ALIGNMENT
    if not isinstance(value, int) or value < 1:
        raise GgufError(f"general.alignment: {value} is no alignment.")
    return value
