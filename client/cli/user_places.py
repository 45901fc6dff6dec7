"""Where `aerobee user` and `aerobee acl` find and change users: a broker's files, or the brokers of
a cluster."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aerobee.broker.auth import edits
from aerobee.broker.auth.book import FILE_NAME, AccessBook
from aerobee.broker.auth.model import AccessError, Rule, User, make_rule
from aerobee.broker.base.clock import Clock
from aerobee.broker.settings import load_settings
from aerobee.client.admin.types import Broker
from aerobee.client.admin.users import Users
from aerobee.client.cli.common import failure_of
from aerobee.client.cli.failures import Failure
from aerobee.client.client import Client
from aerobee.client.errors import (
    AerobeeError,
    ConnectionLost,
    NotFound,
    RequestTimeout,
    Unconfirmed,
)

_UNCERTAIN: Final = (ConnectionLost, RequestTimeout, Unconfirmed)  # it may have been done


class Files:
    """The users of a broker on this machine, running or not: it reloads its files automatically."""

    def __init__(self, config: str | None, store: str | None) -> None:
        overrides = {"storePathRootDir": store} if store else {}
        settings = load_settings(config, overrides)
        path = os.path.join(settings.store_path_root_dir, "config", FILE_NAME)
        self.book = AccessBook(settings, path, Clock())
        self.book.load()

    async def users(self) -> list[User]:
        return [self.book.current.users[name] for name in sorted(self.book.current.users)]

    async def add(self, name: str, secret: str, is_super: bool) -> None:
        await self._edit(name, lambda all_: edits.add_user(all_, name, secret, is_super=is_super))

    async def rotate(self, name: str, secret: str) -> None:
        now_ms = Clock().now_ms()
        await self._edit(name, lambda all_: edits.rotate_secret(all_, name, secret, now_ms))

    async def switch(self, name: str, is_enabled: bool) -> None:
        await self._edit(name, lambda all_: edits.change_user(all_, name, is_enabled=is_enabled))

    async def remove(self, name: str) -> None:
        await self._edit(name, lambda all_: edits.remove_user(all_, name))

    async def grant(self, name: str, rule: Rule) -> None:
        await self._edit(name, lambda all_: edits.grant(all_, name, rule))

    async def revoke(self, name: str, resource: str) -> None:
        await self._edit(name, lambda all_: edits.revoke(all_, name, resource))

    async def _edit(self, name: str, edit: Callable[[edits.Accounts], None]) -> None:
        if place := self.book.is_in_file(name):
            raise AccessError(f"User:{name} is defined in {place} and must be changed there")
        await self.book.change(lambda accounts, _white: edit(accounts))


class PartlyChanged(Failure):
    """Some brokers of the cluster have the change, others have not, or may have it."""

    def __init__(self, changed: list[str], failed: dict[str, AerobeeError]) -> None:
        first = failure_of(next(iter(failed.values())))
        reasons = "; ".join(
            f"{at}{' (perhaps)' if isinstance(error, _UNCERTAIN) else ''}: "
            f"{failure_of(error).message}"
            for at, error in failed.items()
        )
        done = f"done on {', '.join(changed)}, " if changed else ""
        super().__init__(f"{done}not done on {reasons}", first.status)

    def advised(self, text: str) -> Failure:
        """The same with what to do."""
        return Failure(f"{self.message}. {text}", self.status)


class Wire:
    """The users of every broker of a cluster."""

    def __init__(self, mq: Client) -> None:
        self._users: Users = mq.admin.users
        self._brokers = mq.admin.brokers
        self._replication = mq.admin.replication

    async def _addresses(self) -> list[str]:
        """The brokers to change: not slaves that copy their master's users. NotFound when there is
        none: a user whose secret is shown must be on some broker."""
        brokers = await self._brokers()
        found = [
            each.address for each in brokers if not each.number or not await self._copies(each)
        ]
        if not found:
            raise NotFound("the name servers know no broker that keeps users of its own")
        return found

    async def _copies(self, slave: Broker) -> bool:
        status = await self._replication(slave.address)
        return bool((status.get("access") or {}).get("isCopied"))

    async def users(self) -> list[User]:
        """Those of the first broker; all should be the same."""
        first = (await self._addresses())[0]
        rules = {row["subject"]: _rules(row) for row in await self._users.rights(first)}
        return [
            User(
                row["username"],
                is_super=row["userType"] == "Super",
                is_enabled=row["userStatus"] == "enable",
                rules=tuple(rules.get(f"User:{row['username']}", ())),
            )
            for row in await self._users.all(first)
        ]

    async def _each(self, change: Callable[[str], Awaitable[None]]) -> None:
        """Change every broker, also after one that fails; PartlyChanged tells them apart."""
        changed: list[str] = []
        failed: dict[str, AerobeeError] = {}
        for address in await self._addresses():
            try:
                await change(address)
                changed.append(address)
            except AerobeeError as error:
                failed[address] = error
        if not failed:
            return
        if changed or any(isinstance(error, _UNCERTAIN) for error in failed.values()):
            raise PartlyChanged(changed, failed)
        raise next(iter(failed.values()))

    async def add(self, name: str, secret: str, is_super: bool) -> None:
        await self._each(lambda at: self._users.add(at, name, secret, is_super=is_super))

    async def rotate(self, name: str, secret: str) -> None:
        await self._each(lambda at: self._users.change(at, name, password=secret, keepOld=True))

    async def switch(self, name: str, is_enabled: bool) -> None:
        status = "enable" if is_enabled else "disable"
        await self._each(lambda at: self._users.change(at, name, userStatus=status))

    async def remove(self, name: str) -> None:
        await self._each(lambda at: self._users.remove(at, name))

    async def grant(self, name: str, rule: Rule) -> None:
        entry = {
            "resource": rule.resource,
            "actions": rule.action_names,
            "sourceIps": [str(network) for network in rule.networks],
            "decision": "Allow" if rule.allow else "Deny",
        }
        await self._each(lambda at: self._users.grant(at, name, entry))

    async def revoke(self, name: str, resource: str) -> None:
        await self._each(lambda at: self._users.revoke(at, name, resource))


def _rules(acl: dict[str, Any]) -> list[Rule]:
    return [
        make_rule(
            entry["decision"] == "Allow",
            entry["resource"],
            entry["actions"],
            entry.get("sourceIps") or (),
            default=policy["policyType"] == "Default",
        )
        for policy in acl["policies"]
        for entry in policy["entries"]
    ]


Place = Files | Wire
