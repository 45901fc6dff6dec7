"""Java's hashes of many texts at once, as tags codes and index files use them."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aerobee.protocol.files.java_hash import java_hash

POWERS: Final = np.cumprod(np.r_[1, np.full(65535, 31)], dtype=np.uint32)  # of 31, mod 2^32
FEW: Final = 12  # texts: hashed one by one
_INT_MIN: Final = 0x80000000


def hash_texts(texts: NDArray[Any]) -> NDArray[Any]:
    """The Java hash (uint32) of each row of a matrix of ASCII characters."""
    return np.asarray(texts.astype(np.uint32) @ POWERS[: texts.shape[1]][::-1])


def hash_keys(keys: list[str], prefixes: list[int]) -> NDArray[Any] | list[int]:
    """The index hash of each "topic#key", given the hash of its "topic#"."""
    joined = "".join(keys)
    if len(keys) <= FEW or not joined.isascii():
        return [_hash_key(key, prefix) for key, prefix in zip(keys, prefixes, strict=True)]
    longest = max(map(len, keys))
    if longest > 256:
        return [_hash_key(key, prefix) for key, prefix in zip(keys, prefixes, strict=True)]
    # Leading zeros do not change a hash, so texts of all lengths share one matrix.
    rows = "".join([key.rjust(longest, "\0") for key in keys]).encode()
    matrix = np.frombuffer(rows, np.uint8).reshape(len(keys), longest)
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    return fold_hashes(np.asarray(prefixes, np.uint32) * POWERS[lengths] + hash_texts(matrix))


def fold_hashes(hashes: NDArray[Any]) -> NDArray[Any]:
    """Java hashes (uint32) as an index file keeps them: never negative."""
    signed: NDArray[Any] = np.abs(hashes.astype(np.int32).astype(np.int64))
    signed[signed == _INT_MIN] = 0
    return signed


def _hash_key(key: str, prefix: int) -> int:
    units = len(key) if key.isascii() else len(key.encode("utf-16-le", "surrogatepass")) // 2
    value = (prefix * pow(31, units, 1 << 32) + java_hash(key)) & 0xFFFFFFFF
    value = abs(value - (1 << 32)) if value & _INT_MIN else value
    return 0 if value == _INT_MIN else value
