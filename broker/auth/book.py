"""All users: of the operator's files, of the settings, and of config/access.json.

The operator's files are never written. What mqadmin and `aerobee user` change goes to access.json;
a user that is defined in a file is changed only there. Files are checked every few seconds; if one
cannot be used, nothing changes.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from aerobee.broker.auth.accounts import Account, digest_of, make_user
from aerobee.broker.auth.files import (
    Mark,
    access_files,
    check_mode,
    lists_of,
    marks,
    read_access_file,
    secret_file,
    with_secret,
)
from aerobee.broker.auth.model import Access, AccessError, User, nobody
from aerobee.broker.auth.white_addresses import white_addresses
from aerobee.broker.base.clock import Clock
from aerobee.broker.services.config_files.json_file import load_json, save_private_json
from aerobee.broker.settings import Settings
from aerobee.broker.settings.access import InitialUser, InnerCredentials
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.real_disk import RealDisk

log = structlog.get_logger("aerobee.access")

FILE_NAME: Final = "access.json"
CHECK_EVERY_S: Final = 5.0
SHIPPED_SECRET: Final = "12345678"  # that of every plain_acl.yml that Apache ships


class AccessBook:
    """Who may do what, now; `generation` grows with every change."""

    def __init__(
        self, settings: Settings, path: str, clock: Clock, disk: Disk | None = None
    ) -> None:
        self.current = Access()
        self.generation = 0
        self.changed_at_ms = 0
        self.accounts: dict[str, Account] = {}  # of access.json
        self.white: list[str] = []
        self.path = path
        self._settings = settings
        self._clock = clock
        self._disk = disk if disk is not None else RealDisk()
        self._marks: tuple[Mark, ...] = ()
        self._secret_files: list[str] = []  # that the operator's files name
        self._changing = asyncio.Lock()

    # --- reading

    def load(self) -> None:
        """Read everything; on an AccessError, which says what is wrong, the old state stays."""
        while True:
            known = self._secret_files
            self._marks = self._read_marks()
            own, white = self._own_file()
            access = self._made_of(own, white)
            if self._secret_files == known:  # else the marks lack some
                break
        self._put_in_force(own, white, access)

    def reload(self) -> None:
        """Reload everything; on an error nothing changes, and the reason is logged."""
        try:
            self.load()
        except AccessError as error:
            log.error("users and rights are not reloaded: the old ones stay", reason=str(error))
        else:
            log.info("users and rights reloaded", users=len(self.current.users))

    async def watch(self) -> None:
        """Reload when a file changes or an old secret expires, until cancelled."""
        while True:
            await self._clock.sleep(CHECK_EVERY_S)
            if self._read_marks() != self._marks or self._secret_has_expired():
                self.reload()

    def _read_marks(self) -> tuple[Mark, ...]:
        return tuple(marks([*access_files(self._settings), *self._secret_files, self.path]))

    def _own_file(self) -> tuple[list[Account], list[str]]:
        if os.path.exists(self.path):
            check_mode(self.path)
        try:
            content = load_json(self.path, disk=self._disk) or {}
        except OSError as error:
            raise AccessError(f"{self.path} cannot be read: {error.strerror}") from None
        return lists_of(content, self.path)

    def _made_of(self, own: list[Account], own_white: list[str]) -> Access:
        """All users: those of the files count first, then access.json's, then the settings'."""
        now_ms = self._clock.now_ms()
        users: dict[str, User] = {}
        white = list(own_white)
        defined: list[tuple[str, Account]] = []
        for path in access_files(self._settings):
            accounts, addresses = read_access_file(path)
            white += addresses
            defined += [(path, account) for account in accounts]
        # Watched from now on, also those that cannot be read yet.
        self._secret_files = [
            file for path, account in defined if (file := secret_file(account, path))
        ]
        for path, account in defined:
            user = make_user(with_secret(account, path), path, now_ms)
            if user.name in users:
                log.warning("an account is defined twice: the first is used", user=user.name)
            users.setdefault(user.name, user)
        for user in (*(make_user(each, self.path, now_ms) for each in own), *self._of_settings()):
            users.setdefault(user.name, user)
        tests = [white_addresses(text) for text in white]
        is_white = (lambda address: any(test(address) for test in tests)) if tests else nobody
        by_certificate: dict[str, str] = {}
        for user in users.values():
            for certificate in user.certificates:
                if by_certificate.setdefault(certificate, user.name) != user.name:
                    raise AccessError(
                        f"{user.origin}: the certificate {certificate} stands for "
                        f"User:{by_certificate[certificate]} already; name it once"
                    )
        return Access(users, is_white, by_certificate, tuple(sorted(white)))

    def _put_in_force(self, own: list[Account], white: list[str], access: Access) -> None:
        self.accounts = {str(account.get("accessKey")): account for account in own}
        self.white = list(white)
        self.current = access
        self.generation += 1
        self.changed_at_ms = self._clock.now_ms()

    def _of_settings(self) -> list[User]:
        users = []
        if text := self._settings.init_authentication_user:
            first = msgspec.json.decode(text, type=InitialUser)
            users.append(_super(first.username, first.password, "initAuthenticationUser"))
        if text := self._settings.inner_client_authentication_credentials:
            inner = msgspec.json.decode(text, type=InnerCredentials)
            users.append(
                _super(inner.access_key, inner.secret_key, "innerClientAuthenticationCredentials")
            )
        return users

    def _secret_has_expired(self) -> bool:
        now_ms = self._clock.now_ms()
        return any(0 < user.old_secret_until_ms <= now_ms for user in self.current.users.values())

    # --- changing

    def is_in_file(self, name: str) -> str:
        """The file that defines this user and must be edited by hand; "" when we may change it."""
        user = self.current.users.get(name)
        return user.origin if user is not None and name not in self.accounts else ""

    async def change(
        self,
        edit: Callable[[dict[str, Account], list[str]], None],
    ) -> None:
        """Let `edit` change accounts and white addresses, save them, apply them.

        AccessError when the result is invalid, OSError when the disk refuses: then nothing is
        changed."""
        async with self._changing:
            if self._read_marks() != self._marks:
                self.load()
            accounts = {name: dict(account) for name, account in self.accounts.items()}
            white = list(self.white)
            edit(accounts, white)
            for name in accounts:
                if place := self.is_in_file(name):
                    raise AccessError(f"User:{name} is defined in {place}: change it there")
            await self._replace(list(accounts.values()), white)

    async def take_over(self, own: list[Account], white: list[str]) -> bool:
        """Replace the content of access.json by the master's and apply it; False when it is the
        same. Raises as `change` does."""
        async with self._changing:
            if self._read_marks() != self._marks:
                self.load()
            if own == list(self.accounts.values()) and white == self.white:
                return False
            await self._replace(own, white)
            return True

    async def _replace(self, own: list[Account], white: list[str]) -> None:
        before = self._read_marks()  # of the files as they are read now, or later
        access = self._made_of(own, white)
        if not any(user.is_super and user.is_enabled for user in access.users.values()):
            raise AccessError("no super user would be left to change anything again")
        content = {"accounts": own, "globalWhiteRemoteAddresses": white}
        await asyncio.to_thread(save_private_json, self.path, content, self._disk)
        self._put_in_force(own, white, access)
        # An operator's file may have changed meanwhile: then it is read again.
        others = [mark for mark in before if mark[0] != self.path]
        self._marks = (*others, *marks([self.path]))


def _super(name: str, secret: str, origin: str) -> User:
    digest = digest_of({"accessKey": name, "secretKey": secret, "type": "Super"})
    return User(name, (secret,), is_super=True, origin=origin, digest=digest)
