"""Makes a user from an account in a file or a request: the fields of plain_acl.yml, and ours.

accessKey: billing            secretKey: ... or secretFile: ...
admin, whiteRemoteAddress, defaultTopicPerm, defaultGroupPerm, topicPerms, groupPerms: as Apache's
type: Super | Normal          status: enable | disable     fresh: true (no copies of requests)
certificates:                 names in a client's certificate that identify this user
policies:                     oldSecretKey, oldSecretUntil: the previous secret, valid until (ms)
  - allow Topic:orders* Pub,Sub from 10.0.0.0/8
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from aerobee.broker.auth.model import (
    ALL_ACTIONS,
    ANONYMOUS,
    ANY,
    GET,
    GROUP,
    PUB,
    SUB,
    TOPIC,
    AccessError,
    Rule,
    User,
    parse_rule,
)
from aerobee.broker.auth.white_addresses import white_addresses
from aerobee.protocol.names import RETRY_PREFIX

Account = dict[str, Any]

KEYS: Final = frozenset(
    {
        *("accessKey", "secretKey", "secretFile", "whiteRemoteAddress", "admin"),
        *("defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"),
        *("type", "status", "policies", "oldSecretKey", "oldSecretUntil", "fresh"),
        "certificates",
    }
)
# What a perm of plain_acl.yml allows. Get is included: Apache requires no permission for it.
_PERMS: Final = {"PUB": {PUB, GET}, "SUB": {SUB, GET}}


def origin_of(value: Any, file: str) -> str:
    """The file that a text was read from, and the line if it is known."""
    line = getattr(value, "line", 0)
    return f"{file}:{line}" if line else file


def make_user(account: Account, file: str, now_ms: int) -> User:
    """The user of one account; AccessError says what is wrong with it."""
    name = text_of(account, "accessKey")
    origin = origin_of(account.get("accessKey"), file)
    if not name:
        raise AccessError(f"{file}: an account has no accessKey; give it one")
    if unknown := account.keys() - KEYS:
        raise AccessError(
            f"{origin}: the account {name} has the unknown field {min(unknown)}; known are "
            f"{', '.join(sorted(KEYS))}"
        )
    secret = text_of(account, "secretKey")
    certificates = frozenset(texts_of(account, "certificates"))
    if not secret and not certificates and name != ANONYMOUS:
        raise AccessError(f"{origin}: the account {name} has no secretKey; give it one")
    kind, status = text_of(account, "type").lower(), text_of(account, "status").lower()
    if kind not in ("", "super", "normal") or status not in ("", "enable", "disable"):
        raise AccessError(f"{origin}: type is Super or Normal, status is enable or disable")
    old, until = text_of(account, "oldSecretKey"), text_of(account, "oldSecretUntil")
    old_until_ms = int(until) if old and until.isdecimal() and int(until) > now_ms else 0
    secrets = (secret, old) if old_until_ms else (secret,)
    try:
        rules = (*_plain_rules(account, file), *_policies(account, file))
        is_white = white_addresses(text_of(account, "whiteRemoteAddress"))
    except AccessError as error:
        raise AccessError(f"{origin}: account {name}: {error}") from None
    is_admin = text_of(account, "admin").lower() == "true"
    return User(
        name,
        tuple(filter(None, secrets)),
        is_super=is_admin or kind == "super",
        is_enabled=status != "disable",
        rules=rules,
        lists_bind=is_admin and bool(account.get("topicPerms") or account.get("groupPerms")),
        is_white=is_white,
        certificates=certificates,
        is_fresh=text_of(account, "fresh").lower() == "true",
        origin=origin,
        digest=digest_of(account),
        old_secret_until_ms=old_until_ms,
    )


def digest_of(account: Account) -> str:
    """The digest of an account with its secret filled in, wherever that was read from."""
    fields = {key: value for key, value in account.items() if key != "secretFile"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()


def text_of(account: Account, key: str) -> str:
    value = account.get(key)
    if value is None:
        return ""
    if not isinstance(value, str | int | float):
        raise AccessError(f"{key} must be one value, not {value!r:.40}")
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def texts_of(account: Account, key: str) -> list[str]:
    value = account.get(key) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise AccessError(f"{key} must be a list of texts")
    return value


def _policies(account: Account, file: str) -> Iterator[Rule]:
    for text in texts_of(account, "policies"):
        yield parse_rule(text, origin_of(text, file))


def _plain_rules(account: Account, file: str) -> Iterator[Rule]:
    for kind, default_key, list_key in (
        (TOPIC, "defaultTopicPerm", "topicPerms"),
        (GROUP, "defaultGroupPerm", "groupPerms"),
    ):
        default = account.get(default_key)
        allowed = _allowed(text_of(account, default_key))
        if allowed:
            yield Rule(True, kind, ANY, allowed, origin=origin_of(default, file))
        for text in texts_of(account, list_key):
            name, _, perm = (part.strip() for part in text.partition("="))
            if kind == GROUP:
                name = name.removeprefix(RETRY_PREFIX)
            yield from _listed(kind, name, _allowed(perm), origin_of(text, file))


def _listed(kind: str, name: str, allowed: frozenset[str], origin: str) -> Iterator[Rule]:
    """A name on a list: what it does not allow is denied, whatever the default says."""
    if not name or ANY in name:
        raise AccessError(
            f"{name!r} is not the name of a {kind.lower()}; prefixes go into policies"
        )
    if allowed:
        yield Rule(True, kind, name, allowed, origin=origin)
    yield Rule(False, kind, name, ALL_ACTIONS - allowed, origin=origin)


def _allowed(perm: str) -> frozenset[str]:
    """The actions of `PUB`, `SUB`, `PUB|SUB` or `DENY`; any other text means DENY, as in Apache."""
    parts = [part.strip() for part in perm.split("|")]
    if not all(part in _PERMS for part in parts):
        return frozenset()
    return frozenset().union(*(_PERMS[part] for part in parts))
