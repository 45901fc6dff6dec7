"""RocketMQ's ACL 1.0: an access key and a signature among the ext fields of a request.

Ours adds three fields, which RocketMQ signs with the others and does not read: when the request was
made, its number among those of a connection, and its code, which is not signed otherwise.
"""

import base64
import hmac
import itertools
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aerobee.protocol.wire.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
FRESH_CODE: Final = "_c"
FRESH_NUMBER: Final = "_n"
FRESH_TIME: Final = "_t"
SECURITY_TOKEN: Final = "SecurityToken"
# What signing adds to a request.
SIGNING_FIELDS: Final = frozenset(
    {ACCESS_KEY, SIGNATURE, SECURITY_TOKEN, FRESH_CODE, FRESH_NUMBER, FRESH_TIME}
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secret, as RocketMQ's ACL wants them."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def sign(self, command: Command) -> None:
        """Add the key and the signature over all other ext values and the body."""
        ext = command.ext
        ext[ACCESS_KEY] = self.access_key
        if self.security_token:
            ext[SECURITY_TOKEN] = self.security_token
        ext[SIGNATURE] = signature(ext, command.body, self.secret_key)


class Signer:
    """Signs the requests of one connection, in the order in which they are sent."""

    __slots__ = ("_credentials", "_numbers", "_session")

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._session = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def sign(self, command: Command) -> None:
        """Against replays, where the broker checks for them."""
        ext = command.ext
        ext[FRESH_CODE] = str(command.code)
        ext[FRESH_NUMBER] = f"{self._session}.{next(self._numbers)}"
        ext[FRESH_TIME] = str(time.time_ns() // 1_000_000)
        self._credentials.sign(command)


def signed_content(ext: Mapping[str, str]) -> bytes:
    """What is signed before the body: the ext values in the order of their names."""
    return "".join([ext[name] for name in sorted(ext) if name != SIGNATURE]).encode()


def signature(ext: Mapping[str, str], body: bytes | memoryview, secret_key: str) -> str:
    """HMAC-SHA1 over the ext values and the body."""
    digest = hmac.digest(secret_key.encode(), signed_content(ext) + body, "sha1")
    return base64.b64encode(digest).decode()
