"""Compressed bodies: zlib, LZ4 and Zstandard, as the record's system flags say."""

import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Any, Final

from aerobee.protocol.files import record


class CannotInflate(ValueError):
    """A body that does not match its flags, or whose compression is not supported."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


def deflate(body: bytes) -> tuple[bytes, int]:
    """The compressed body and its system flag."""
    packed = zlib.compress(body, 5)
    return (packed, record.COMPRESSED) if len(packed) < len(body) else (body, 0)


def inflate(body: bytes, sys_flag: int) -> bytes:
    """The decompressed body; CannotInflate when that fails."""
    form = sys_flag & record.COMPRESSION_MASK
    decompress = _decompressor(form)
    try:
        return decompress(body)
    except Exception as error:  # each library raises its own
        raise CannotInflate(f"the body of form {form:#x} cannot be inflated: {error}") from error


@cache
def _decompressor(form: int) -> Callable[[bytes], bytes]:
    if form in (0, record.COMPRESSION_ZLIB):
        return zlib.decompress
    what = f"the body is compressed in form {form:#x}, which"
    if form not in _READERS:
        raise CannotInflate(f"{what} is not known")
    for module, read in _READERS[form].items():
        with suppress(ImportError):
            return partial(read, import_module(module))
    package = next(iter(_READERS[form])).partition(".")[0]
    raise CannotInflate(f"{what} needs the package {package}", f"pip install {package}")


def _read_zstandard(library: Any, body: bytes) -> bytes:
    """As a stream: Java's frames do not state their size."""
    return bytes(library.ZstdDecompressor().decompressobj().decompress(body))


def _read_arrow(codec: str, library: Any, body: bytes) -> bytes:
    with library.CompressedInputStream(library.BufferReader(body), codec) as stream:
        return bytes(stream.read())


# Forms that Java's producers can be set to, and the modules that read them; Spark has pyarrow.
_READERS: Final[dict[int, dict[str, Callable[[Any, bytes], bytes]]]] = {
    record.COMPRESSION_LZ4: {
        "lz4.frame": lambda library, body: bytes(library.decompress(body)),
        "pyarrow": partial(_read_arrow, "lz4"),
    },
    record.COMPRESSION_ZSTD: {
        "zstandard": _read_zstandard,
        "pyarrow": partial(_read_arrow, "zstd"),
    },
}
