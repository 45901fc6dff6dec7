"""A connection to the leading controller, found again when the leader changes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, Final

from aerobee.broker.ha.arbiter import ArbiterError
from aerobee.broker.net.addresses import join
from aerobee.broker.net.inner_client import inner_credentials, inner_tls
from aerobee.broker.net.request_link import LinkError, RequestLink
from aerobee.broker.settings import Settings
from aerobee.broker.settings.failover import addresses_of
from aerobee.protocol.wire import controller_codes as controller
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import Command

UNANSWERED_MAX: Final = 5  # requests, before its machine is considered dead


class ControllerClient:
    """Requests one after the other."""

    def __init__(self, settings: Settings, timeout_s: float) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._link: RequestLink | None = None
        self._finding = asyncio.Lock()
        self._unanswered = 0  # requests, since the last answer
        self.local = ("127.0.0.1", 0)  # our end of the connection

    @property
    def leader(self) -> str:
        """The last known leader; "": not known."""
        return self._link.address if self._link is not None else ""

    async def ask(self, code: int, fields: dict[str, Any], body: bytes = b"") -> Command:
        """The answer: success, or a definite refusal. ArbiterError: the outcome is unknown."""
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._finding:
                    link = self._link = self._link or await self._find_leader()
                answer = await _asked(link, code, fields, body, self._timeout_s)
        except LinkError as error:
            self.close()
            raise ArbiterError(str(error)) from None
        except TimeoutError:
            raise ArbiterError(self._late()) from None
        self._unanswered = 0
        if answer.code == ResponseCode.SUCCESS:
            return answer
        if answer.code == controller.NOT_LEADER or answer.code not in controller.ANSWERS:
            self.close()
            raise ArbiterError(f"the controller answered {answer.code}: {answer.remark}")
        return answer

    def _late(self) -> str:
        """The error when no answer came in time. The connection is kept for some more requests:
        the controller takes its end for our death."""
        if self._link is None:
            return f"no controller that leads was found in {self._timeout_s:g} s"
        text = f"the controller at {self._link.address} did not answer in {self._timeout_s:g} s"
        self._unanswered += 1
        if self._unanswered >= UNANSWERED_MAX:
            self.close()
        return text

    async def _find_leader(self) -> RequestLink:
        """A connection to the leader, which every controller knows. All are asked at once, because
        one whose machine is gone does not even refuse."""
        asking = [asyncio.create_task(self._leader_by(each)) for each in await self._addresses()]
        failures: list[str] = []
        found: RequestLink | None = None
        try:
            for answer in asyncio.as_completed(asking):
                try:
                    found = await answer
                    break
                except LinkError as error:
                    failures.append(str(error))
        finally:
            for task in asking:
                task.cancel()
            for other in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(other, RequestLink) and other is not found:
                    other.close()
        if found is None:
            raise LinkError("; ".join(failures) or "controllerAddr names no controller")
        self.local = found.local
        return found

    async def _leader_by(self, address: str) -> RequestLink:
        """A connection to the leader that this controller names."""
        link = self._link_to(address)
        try:
            answer = await _asked(link, controller.GET_METADATA_INFO, {}, b"", self._timeout_s)
        finally:
            link.close()
        leader = answer.ext.get("controllerLeaderAddress", "")
        if not leader:
            raise LinkError(f"the controller at {address} knows no leader")
        found = self._link_to(leader)
        await found.connect(self._timeout_s)
        return found

    def _link_to(self, address: str) -> RequestLink:
        settings = self._settings
        credentials, tls = inner_credentials(settings), inner_tls(settings)
        return RequestLink(address, _nothing, credentials, tls, kind="controller")

    async def _addresses(self) -> Sequence[str]:
        addresses = addresses_of(self._settings.controller_addr)
        if not self._settings.fetch_controller_addr_by_dns_lookup:
            return addresses
        loop, found, failure = asyncio.get_running_loop(), [], ""
        for address in addresses:
            host, _, port = address.rpartition(":")
            try:
                rows = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:  # the others may be found
                failure = f"controllerAddr={address} cannot be looked up: {error}"
                continue
            found += [join(str(row[4][0]), int(port)) for row in rows]
        if failure and not found:
            raise LinkError(failure)
        return found

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
            self._unanswered = 0


async def _asked(
    link: RequestLink, code: int, fields: dict[str, Any], body: bytes, seconds: float
) -> Command:
    ext = {name: str(value) for name, value in fields.items()}
    await link.connect(seconds)
    # The caller's own timeout is shorter.
    return await link.request(Command(code, ext, body), 2 * seconds)


def _nothing() -> None:
    """The next request opens the connection again."""
