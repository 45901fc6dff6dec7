"""The operator's files of users: YAML, all scalars as text, readable by their owner only."""

import os
import stat
from collections.abc import Iterator
from typing import Any, Final

from aerobee.broker.auth.accounts import Account, text_of
from aerobee.broker.auth.model import AccessError
from aerobee.broker.settings import Settings

FILE_SIZE_MAX: Final = 4 << 20
FOLDER: Final = "acl"
NAMES: Final = ("access.yml", "plain_acl.yml")
_TOO_OPEN: Final = stat.S_IWGRP | stat.S_IRWXO

Mark = tuple[str, int, int, int]


def access_files(settings: Settings) -> list[str]:
    """Those that are there, in the order in which they count."""
    folder = os.path.dirname(os.path.abspath(settings.acl_file)) if settings.acl_file else ""
    folder = folder or settings.folder
    if not folder:
        return []
    first = [settings.acl_file] if settings.acl_file else [os.path.join(folder, n) for n in NAMES]
    below = [
        os.path.join(path, name)
        for path, _, names in sorted(os.walk(os.path.join(folder, FOLDER)))
        for name in sorted(names)
        if name.endswith((".yml", ".yaml"))
    ]
    return [path for path in (*first, *below) if path == settings.acl_file or os.path.exists(path)]


def read_access_file(path: str) -> tuple[list[Account], list[str]]:
    """The accounts, as they are written, and the white addresses of one file; AccessError says what
    is wrong."""
    from aerobee.broker.auth.yaml_text import parse

    check_mode(path)
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_SIZE_MAX + 1)
        if len(data) > FILE_SIZE_MAX:
            raise AccessError(f"{path} has more than {FILE_SIZE_MAX} bytes")
        content = parse(data)
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        problem, where = error.args
        raise AccessError(f"{path}{where} cannot be read: {problem}") from None
    if content is None or content == "":
        return [], []
    if not isinstance(content, dict):
        raise AccessError(f"{path} holds no `accounts:`; see docs/security.md")
    return lists_of(content, path)


def lists_of(content: dict[Any, Any], path: str) -> tuple[list[Account], list[str]]:
    """The accounts and the white addresses in the content of a file, YAML's or JSON's."""
    accounts, white = content.get("accounts") or [], content.get("globalWhiteRemoteAddresses") or []
    if not isinstance(accounts, list) or not all(isinstance(each, dict) for each in accounts):
        raise AccessError(f"{path}: accounts must be a list of accounts")
    if not isinstance(white, list) or not all(isinstance(each, str) for each in white):
        raise AccessError(f"{path}: globalWhiteRemoteAddresses must be a list of addresses")
    return accounts, white


def secret_file(account: Account, path: str) -> str:
    """The file with the secret of an account of the file `path`; "" when it has none."""
    file = text_of(account, "secretFile")
    if not file:
        return ""
    return os.path.join(os.path.dirname(os.path.abspath(path)), os.path.expandvars(file))


def with_secret(account: Account, path: str) -> Account:
    """The secret of a `secretFile` (systemd's credentials, a container's secrets) put in place."""
    file = secret_file(account, path)
    if not file:
        return account
    check_mode(file)
    try:
        with open(file, encoding="utf-8") as opened:
            secret = opened.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AccessError(f"{path}: secretFile {file} cannot be read: {error}") from None
    return {**account, "secretKey": secret}


def check_mode(path: str) -> None:
    """AccessError when others than the owner (and, to read, its group) may use the file."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror}") from None
    if mode & _TOO_OPEN:
        raise AccessError(
            f"{path} holds secrets and others may read or change it (mode "
            f"{stat.S_IMODE(mode):o}); run: chmod 600 {path}"
        )


def marks(paths: list[str]) -> Iterator[Mark]:
    """What changes when a file does; a link's target counts, as Kubernetes swaps links."""
    for path in paths:
        try:
            facts = os.stat(path)
        except OSError:
            continue
        yield path, facts.st_mtime_ns, facts.st_size, facts.st_ino
