"""Changes of accounts, as mqadmin and `aerobee user` and `aerobee acl` ask for them.

Each takes the accounts of access.json by name and changes them in place; AccessError says why not.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Final

from aerobee.broker.auth.accounts import Account, make_user
from aerobee.broker.auth.model import ANONYMOUS, AccessError, Rule, parse_rule

Accounts = dict[str, Account]

SECRET_BYTES: Final = 32
OLD_SECRET_MS: Final = 24 * 3600 * 1000
PLAIN_FIELDS: Final = frozenset(
    {
        *("secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm"),
        *("topicPerms", "groupPerms"),
    }
)
_NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,128}")


def new_secret() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


def add_user(accounts: Accounts, name: str, secret: str, *, is_super: bool = False) -> None:
    if name in accounts:
        raise AccessError(f"User:{name} exists already")
    if not _NAME.fullmatch(name):
        raise AccessError(f"{name!r:.140} is not a user name: use letters, digits and _ - . @")
    if not secret and name != ANONYMOUS:
        raise AccessError(f"User:{name} needs a password")
    accounts[name] = {"accessKey": name, "secretKey": secret}
    change_user(accounts, name, is_super=is_super)


def change_user(
    accounts: Accounts,
    name: str,
    *,
    secret: str = "",
    is_super: bool | None = None,
    is_enabled: bool | None = None,
) -> None:
    account = _account(accounts, name)
    if secret:
        account["secretKey"] = secret
    if is_super is not None:
        account["type"] = "Super" if is_super else "Normal"
        account.pop("admin", None)
    if is_enabled is not None:
        account["status"] = "enable" if is_enabled else "disable"


def rotate_secret(accounts: Accounts, name: str, secret: str, now_ms: int) -> None:
    """Give a new secret; the old one is good for a day more, so that clients can follow. A repeated
    request changes nothing: the old one would go."""
    account = _account(accounts, name)
    if account.get("secretKey") == secret:
        return
    account["oldSecretKey"] = account.get("secretKey", "")
    account["oldSecretUntil"] = now_ms + OLD_SECRET_MS
    account["secretKey"] = secret


def remove_user(accounts: Accounts, name: str) -> None:
    _account(accounts, name)
    del accounts[name]


def grant(accounts: Accounts, name: str, *rules: Rule) -> None:
    """Add rules; one for the same resource is replaced."""
    account = _account(accounts, name)
    kept = {_place(rule): rule for rule in _rules(account)}
    kept |= {_place(rule): rule for rule in rules}
    account["policies"] = [str(rule) for rule in kept.values()]


def revoke(accounts: Accounts, name: str, resource: str = "", default: bool | None = None) -> None:
    """Take away the rules of a resource, or all."""
    account = _account(accounts, name)
    gone = [
        rule
        for rule in _rules(account)
        if (not resource or rule.resource == resource) and default in (None, rule.default)
    ]
    if resource and not gone:
        raise AccessError(f"User:{name} has no policy for {resource}")
    account["policies"] = [str(rule) for rule in _rules(account) if rule not in gone]


def put_plain_account(accounts: Accounts, name: str, fields: Mapping[str, str]) -> None:
    """mqadmin updateAclConfig: make or change an account in the terms of plain_acl.yml."""
    account = accounts.setdefault(name, {"accessKey": name})
    for key, text in fields.items():
        if key in ("topicPerms", "groupPerms"):
            account[key] = [part.strip() for part in text.split(",") if part.strip()]
        elif key in PLAIN_FIELDS:
            account[key] = text
    if "admin" in fields:
        account.pop("type", None)
    make_user(account, "the request", 0)


def _account(accounts: Accounts, name: str) -> Account:
    try:
        return accounts[name]
    except KeyError:
        raise AccessError(f"User:{name} is not found.") from None


def _rules(account: Account) -> list[Rule]:
    return [parse_rule(text) for text in account.get("policies") or []]


def _place(rule: Rule) -> tuple[bool, str]:
    return rule.default, rule.resource
