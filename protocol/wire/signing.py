"""RocketMQ's ACL 1.0: an access key and a signature among the ext fields of a request."""

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aerobee.protocol.wire.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"


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
            ext["SecurityToken"] = self.security_token
        ext[SIGNATURE] = signature(ext, command.body, self.secret_key)


def signed_content(ext: Mapping[str, str]) -> bytes:
    """What is signed before the body: the ext values in the order of their names."""
    return "".join([ext[name] for name in sorted(ext) if name != SIGNATURE]).encode()


def signature(ext: Mapping[str, str], body: bytes | memoryview, secret_key: str) -> str:
    """HMAC-SHA1 over the ext values and the body."""
    digest = hmac.digest(secret_key.encode(), signed_content(ext) + body, "sha1")
    return base64.b64encode(digest).decode()
