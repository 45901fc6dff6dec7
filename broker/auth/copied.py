"""How users and rights are sent from a master to its replicas: encrypted and authenticated.

The text holds secrets, and answers are not signed. So it is sealed with the secret that both
brokers authenticate with (innerClientAuthenticationCredentials): only they can read or make it. The
mark covers the replica's challenge, so that an answer cannot be replayed, and the name of the
broker group: groups that share the secret do not accept each other's users. The answer that nothing
has changed is sealed too, without a text: otherwise an attacker in between could keep a user alive
on the replica that the master has removed.

    nonce (32)   mark (32)   the text, hidden by the nonce's stream

The text is hidden first, then marked, each with a key of its own: HMAC-SHA-256 of the secret. The
stream is SHAKE-256 of its key and a fresh random nonce. All of it is in the standard library;
AES-GCM would be no safer here, and would add a dependency. A weak secret can be guessed from a
sealed text as from any signed request.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple

from aerobee.broker.auth.model import Access
from aerobee.broker.settings import Settings

NONCE_SIZE: Final = 32
MARK_SIZE: Final = 32
NOTHING_NEW: Final = b""  # the text when the replica has the same already
WHITE: Final = "globalWhiteRemoteAddresses"


class Sealing(NamedTuple):
    """What both sides know: the secret, the group's name, and the replica's challenge."""

    secret: str
    group: str
    challenge: str


def group_of(settings: Settings) -> str:
    """The name that a master and its replicas share."""
    return f"{settings.broker_cluster_name}/{settings.broker_name}"


def seal(sealing: Sealing, text: bytes) -> bytes:
    nonce = secrets.token_bytes(NONCE_SIZE)
    hidden = _hidden(sealing.secret, nonce, text)
    return nonce + _mark(sealing, nonce + hidden) + hidden


def unseal(sealing: Sealing, data: bytes) -> bytes:
    """ValueError: it was not sealed with this secret, by this group, for this challenge."""
    nonce, mark = data[:NONCE_SIZE], data[NONCE_SIZE : NONCE_SIZE + MARK_SIZE]
    hidden = data[NONCE_SIZE + MARK_SIZE :]
    if not hmac.compare_digest(mark, _mark(sealing, nonce + hidden)):
        raise ValueError(
            "users and rights came with a wrong seal: is the master of this brokerClusterName and "
            "brokerName, and of the same version?"
        )
    return _hidden(sealing.secret, nonce, hidden)


def version_of(secret: str, text: bytes) -> str:
    """The version of a replica's copy; it reveals nothing of the text."""
    return hmac.digest(_key(secret, b"version"), text, "sha256").hex()


def _key(secret: str, use: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"aerobee access " + use, "sha256")


def _mark(sealing: Sealing, data: bytes) -> bytes:
    fields = (sealing.group.encode(), sealing.challenge.encode())
    text = b"".join(len(field).to_bytes(4, "big") + field for field in fields) + data
    return hmac.digest(_key(sealing.secret, b"mark"), text, "sha256")


def _hidden(secret: str, nonce: bytes, text: bytes) -> bytes:
    """The text XOR a stream that only a holder of the secret can make; applied twice, the text."""
    stream = hashlib.shake_256(_key(secret, b"hide") + nonce).digest(len(text))
    size = len(text)
    return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")


def digests(access: Access) -> dict[str, str]:
    """The digests of all users, those in files and settings too, and of the white addresses."""
    white = hashlib.sha256("\n".join(access.white).encode()).hexdigest()
    return {name: user.digest for name, user in access.users.items()} | {WHITE: white}


def differences(ours: Access, theirs: Mapping[str, str]) -> str:
    """What differs, for the replica's report; empty: all users are the master's."""
    mine = digests(ours)
    parts = []
    if missing := sorted(theirs.keys() - mine.keys()):
        parts.append(f"missing here: {_named(missing)}")
    if surplus := sorted(mine.keys() - theirs.keys()):
        parts.append(f"not at the master: {_named(surplus)}")
    changed = [name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name]]
    if changed:
        parts.append(f"different here: {_named(sorted(changed))}")
    return "; ".join(parts)


def _named(names: list[str]) -> str:
    shown = [name if name == WHITE else f"User:{name}" for name in names[:5]]
    return ", ".join(shown) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
