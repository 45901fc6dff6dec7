"""A compressed body's bytes: zlib, LZ4 and Zstandard, as the record's system flags say."""

import zlib
from typing import Final

import pyarrow as pa

from aerobee.protocol.record import COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_ZSTD

_CODECS: Final = {COMPRESSION_LZ4: "lz4", COMPRESSION_ZSTD: "zstd"}


def inflate(body: bytes, sys_flag: int) -> bytes:
    """The decompressed body; ValueError when it is not what the flags say."""
    codec = _CODECS.get(sys_flag & COMPRESSION_MASK)
    try:
        if codec is None:
            return zlib.decompress(body)
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            return bytes(stream.read())
    except (zlib.error, OSError) as error:
        raise ValueError(f"its body cannot be decompressed: {error}") from None
