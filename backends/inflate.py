"""Undoing a compression that was not asked for: some servers and proxies send gzip whatever they are told."""

import zlib
from collections.abc import AsyncGenerator, AsyncIterator

from backends.errors import Interrupted

PIECE = 64 * 1024  # bytes at a time, so that a small body cannot become a large one in memory
_GZIP = 16 + zlib.MAX_WBITS
_ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS


def inflated(body: AsyncIterator[bytes], encoding: str, transfer: str | None = None) -> AsyncIterator[bytes]:
    """`body` without its content encoding. Raises ValueError for one that cannot be undone."""
    if transfer is not None and transfer.lower() != "chunked":
        raise ValueError(f"sent transfer-encoding {transfer!r}")
    match encoding.lower():
        case "identity" | "":
            return body
        case "gzip" | "x-gzip":
            return _inflate(body, _GZIP)
        case "deflate":
            return _inflate(body, _ZLIB_OR_GZIP)
        case _:
            raise ValueError(f"sent content-encoding {encoding!r}, which was not asked for")


async def _inflate(body: AsyncIterator[bytes], bits: int) -> AsyncGenerator[bytes]:
    stream = zlib.decompressobj(bits)
    started = False
    async for piece in body:
        rest, more = piece, True
        while more:
            if stream.eof:  # gzip allows one member after the other
                stream = zlib.decompressobj(bits)
            try:
                out = stream.decompress(rest, PIECE)
            except zlib.error as error:
                if started or bits != _ZLIB_OR_GZIP:
                    raise Interrupted(f"the compressed answer is damaged: {error}") from error
                bits = -zlib.MAX_WBITS  # "deflate" without the zlib wrapper, as some servers understand it
                stream = zlib.decompressobj(bits)
                continue
            started = True
            rest = stream.unused_data if stream.eof else stream.unconsumed_tail
            more = bool(rest) or (len(out) == PIECE and not stream.eof)
            if out:
                yield out
    if not stream.eof:
        raise Interrupted("the compressed answer is cut off")
