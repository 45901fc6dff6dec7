"""Users and their rights on every broker, by the requests of RocketMQ 5's mqadmin."""

from __future__ import annotations

from typing import Any

from aerobee.client.core import Core
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode


class Users:
    """Users and their rights. Aerobee brokers answer without secrets."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def all(self, address: str) -> list[dict[str, Any]]:
        answer = await self._ask(address, RequestCode.AUTH_LIST_USER, "the list of users")
        return fastjson.loads(answer) if answer else []

    async def get(self, address: str, name: str) -> dict[str, Any] | None:
        ext = {"username": name}
        answer = await self._ask(address, RequestCode.AUTH_GET_USER, f"user {name!r}", ext)
        return fastjson.loads(answer) if answer else None

    async def add(self, address: str, name: str, secret: str, *, is_super: bool = False) -> None:
        body = {"username": name, "password": secret, "userType": "Super" if is_super else "Normal"}
        await self._put(address, RequestCode.AUTH_CREATE_USER, name, body)

    async def change(self, address: str, name: str, **changes: Any) -> None:
        """`password`, `userType`, `userStatus`; `keepOld`: the old one is valid for a day more."""
        await self._put(address, RequestCode.AUTH_UPDATE_USER, name, {"username": name} | changes)

    async def remove(self, address: str, name: str) -> None:
        ext = {"username": name}
        await self._ask(address, RequestCode.AUTH_DELETE_USER, f"removing user {name!r}", ext)

    async def rights(self, address: str) -> list[dict[str, Any]]:
        """The policies of all users."""
        answer = await self._ask(address, RequestCode.AUTH_LIST_ACL, "the list of rights")
        return fastjson.loads(answer) if answer else []

    async def grant(self, address: str, name: str, entry: dict[str, Any]) -> None:
        subject = f"User:{name}"
        policies = [{"policyType": "Custom", "entries": [entry]}]
        body = fastjson.dumps({"subject": subject, "policies": policies})
        code = RequestCode.AUTH_UPDATE_ACL
        await self._ask(address, code, f"a right of {name!r}", {"subject": subject}, body)

    async def revoke(self, address: str, name: str, resource: str = "") -> None:
        ext = {"subject": f"User:{name}"} | ({"resource": resource} if resource else {})
        await self._ask(address, RequestCode.AUTH_DELETE_ACL, f"the rights of {name!r}", ext)

    async def _put(self, address: str, code: int, name: str, body: dict[str, Any]) -> None:
        data = fastjson.dumps(body)
        await self._ask(address, code, f"user {name!r}", {"username": name}, data)

    async def _ask(
        self,
        address: str,
        code: int,
        what: str,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> bytes | memoryview:
        return (await self._core.remoting.ask(address, code, ext, body, what=what)).body
