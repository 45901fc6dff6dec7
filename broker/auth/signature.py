"""Checks the signature of a request against the secrets that its user has.

HMAC-SHA1 over all ext values but the signature, in the order of their names, and the body. This is
done for every signed message: the keyed states of a secret and the order of a producer's fields are
made once.
"""

import hashlib
import hmac
import secrets
from binascii import b2a_base64
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.signing import SIGNATURE, signed_content

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
FIELDS_MAX: Final = 64  # of a request whose order is remembered
_NOBODYS: Final = (secrets.token_hex(32),)  # an unknown user costs as much time as a known one
_BLOCK: Final = 64  # bytes of SHA-1's
_INNER: Final = bytes(number ^ 0x36 for number in range(256))
_OUTER: Final = bytes(number ^ 0x5C for number in range(256))

# Two plain hash objects are faster to copy than an hmac object, or OpenSSL's HMAC below it.
Keyed = tuple[Callable[[], Any], Callable[[], Any]]


@lru_cache(4096)
def keyed(secret: str) -> Keyed:
    """Make the two states of an HMAC that have taken in the secret."""
    key = secret.encode()
    if len(key) > _BLOCK:
        key = hashlib.sha1(key).digest()
    key = key.ljust(_BLOCK, b"\0")
    return hashlib.sha1(key.translate(_INNER)).copy, hashlib.sha1(key.translate(_OUTER)).copy


@lru_cache(1024)
def _in_order(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], tuple[str, ...]]:
    """A function that returns the signed values of fields with these names, in signing order."""
    ordered = sorted(name for name in names if name != SIGNATURE)
    if len(ordered) < 2:
        return lambda ext: tuple(ext[name] for name in ordered)
    return itemgetter(*ordered)


def content_of(ext: Mapping[str, str]) -> bytes:
    """What is signed before the body."""
    if len(ext) > FIELDS_MAX:
        return signed_content(ext)
    return "".join(_in_order(tuple(ext))(ext)).encode()


def is_signed_by(
    known: Collection[str] | None, code: int, ext: Mapping[str, str], body: bytes | memoryview
) -> bool:
    """Whether one of the known secrets made the request's signature; None: the user is unknown."""
    given = ext.get(SIGNATURE, "").encode(errors="replace")
    found = is_made_by(known, content_of(ext), body, given)
    if code == RequestCode.QUERY_MESSAGE and UNIQUE_KEY_QUERY in ext:
        # Some clients sign this field, some do not.
        without = {name: value for name, value in ext.items() if name != UNIQUE_KEY_QUERY}
        found |= is_made_by(known, signed_content(without), body, given)
    return found


def is_made_by(
    known: Collection[str] | None, content: bytes, body: bytes | memoryview, given: bytes
) -> bool:
    """The same, given the signed content before the body."""
    found = False
    for secret in known or _NOBODYS:
        inner, outer = (copy() for copy in keyed(secret))
        inner.update(content)
        inner.update(body)
        outer.update(inner.digest())
        found |= hmac.compare_digest(b2a_base64(outer.digest(), newline=False), given)
    return found and bool(known)
