"""Keeps a slave's users and rights equal to its master's, and reports where they differ.

The master's config/access.json is copied. Users in files and settings are managed by the operator
on each broker: they are only compared.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

import structlog

from aerobee.broker.auth.copied import (
    NOTHING_NEW,
    Sealing,
    differences,
    group_of,
    unseal,
    version_of,
)
from aerobee.broker.auth.guard import Guard
from aerobee.broker.auth.model import AccessError
from aerobee.broker.ha.master_client import MasterClient, MasterFacts, MasterRefused
from aerobee.broker.net.inner_client import inner_credentials
from aerobee.broker.settings import Settings
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.replica_codes import GET_ACCESS

log = structlog.get_logger("aerobee.ha")

_OPEN_HERE: Final = (
    "aclEnable=true at its master and not here: as the master it would admit everyone"
)
_OPEN_THERE: Final = (
    "aclEnable=true here and not at its master: as the master it would refuse clients that do "
    "not sign"
)
_NO_CREDENTIALS: Final = (
    "users are not copied: set the master's innerClientAuthenticationCredentials here, too"
)


class AccessSync:
    """`is_copied`: our access.json is the master's. `differs`: what an operator has to fix."""

    def __init__(self, settings: Settings, guard: Guard) -> None:
        self._guard = guard
        self._credentials = inner_credentials(settings)
        self._group = group_of(settings)
        self._version = ""  # of the users copied last
        self._generation = -1  # of our users when they were copied
        self._logged = ""
        self.is_copied = False
        self.differs = ""

    def status(self) -> dict[str, Any]:
        return {"isCopied": self.is_copied, "differs": self.differs}

    def forget(self) -> None:
        """The master is no longer followed: its users stay, and may be changed here."""
        self._version = ""
        self.is_copied = False

    async def step(
        self, client: MasterClient, facts: MasterFacts, is_followed: Callable[[], bool]
    ) -> None:
        self.differs = await self._differences(client, facts, is_followed)
        if self.differs != self._logged:
            self._logged = self.differs
            if self.differs:
                log.warning("users and rights are not the master's", reason=self.differs)
            else:
                log.info("users and rights are the master's")

    async def _differences(
        self, client: MasterClient, facts: MasterFacts, is_followed: Callable[[], bool]
    ) -> str:
        is_on = self._guard.is_on
        if facts.has_users != is_on:
            return _OPEN_THERE if is_on else _OPEN_HERE
        if not is_on or not facts.is_ours:  # a Java master does not hand out its users
            return ""
        if self._credentials is None:
            return _NO_CREDENTIALS
        try:
            return await self._copy(client, self._credentials.secret_key, is_followed)
        except (MasterRefused, AccessError, ValueError) as error:
            return f"users are not copied: {error}"
        except OSError as error:
            return f"users are not copied: {self._guard.book.path} cannot be saved: {error}"

    async def _copy(
        self, client: MasterClient, secret: str, is_followed: Callable[[], bool]
    ) -> str:
        book = self._guard.book
        if book.generation != self._generation:
            self._version = ""  # something was changed here
        challenge = secrets.token_hex(16)
        known = {"known": self._version, "challenge": challenge}
        answer = await client.ask(GET_ACCESS, known)
        text = unseal(Sealing(secret, self._group, challenge), bytes(answer.body))
        if not is_followed() or text == NOTHING_NEW:
            return self.differs
        given = fastjson.loads(text)
        if await book.take_over(given["accounts"], given["white"]):
            log.info("users and rights are copied from the master", users=len(given["accounts"]))
        self._version, self._generation = version_of(secret, text), book.generation
        self.is_copied = True
        return differences(book.current, given["digests"])
