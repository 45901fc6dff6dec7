"""A slave's requests to its master: its facts and its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from aerobee.broker.net.addresses import join
from aerobee.broker.net.inner_client import inner_credentials, inner_tls
from aerobee.broker.net.request_link import LinkError, RequestLink
from aerobee.broker.settings import Settings
from aerobee.broker.settings.properties_file import parse_properties
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

ANSWER_S: Final = 5.0


class MasterRefused(LinkError):
    """The master has refused."""


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """Where the master answers requests, and where it sends its log."""

    main: str
    ha: str


@dataclass(frozen=True, slots=True)
class MasterFacts:
    """The facts about a master that a slave needs before it follows."""

    file_size: int  # mappedFileSizeCommitLog
    log_start: int
    log_end: int
    is_ours: bool  # an Aerobee broker
    has_epochs: bool  # it speaks the stream with epochs
    role: str  # brokerRole
    has_users: bool  # access control is on
    ha_address: str = ""  # where it sends its log


class MasterClient:
    """Requests to one master."""

    def __init__(self, address: str, settings: Settings) -> None:
        self.address = address
        credentials, tls = inner_credentials(settings), inner_tls(settings)
        self._link = RequestLink(address, _nothing, credentials, tls, kind="master")

    async def facts(self) -> MasterFacts:
        config = await self.ask(RequestCode.GET_BROKER_CONFIG)
        settings = {key: value for _, key, value in parse_properties(str(config.body, "utf-8"))}
        figures = await self._figures()
        try:
            return MasterFacts(
                int(settings.get("mappedFileSizeCommitLog") or settings["mapedFileSizeCommitLog"]),
                max(0, int(figures["commitLogMinOffset"])),  # -1: a Java broker without a log file
                max(0, int(figures["commitLogMaxOffset"])),
                "sendsRefused" in figures,
                "replicaEpoch" in figures,
                settings.get("brokerRole", ""),
                "true" in (settings.get("aclEnable"), settings.get("authenticationEnabled")),
                _ha_address(self.address, settings),
            )
        except (KeyError, ValueError) as error:
            raise LinkError(f"master {self.address} does not report its {error}") from None

    async def log_bounds(self) -> tuple[int, int]:
        """Where its log begins and ends."""
        figures = await self._figures()
        try:
            return int(figures["commitLogMinOffset"]), int(figures["commitLogMaxOffset"])
        except (KeyError, ValueError) as error:
            raise LinkError(f"master {self.address} does not report its {error}") from None

    async def _figures(self) -> dict[Any, Any]:
        return (await self.ask_json(RequestCode.GET_BROKER_RUNTIME_INFO)).get("table") or {}

    async def ask(self, code: int, ext: dict[str, str] | None = None) -> Command:
        """The master's answer; LinkError when it refuses or does not answer."""
        await self._link.connect(ANSWER_S)
        answer = await self._link.request(Command(code, dict(ext or {})), ANSWER_S)
        if answer.code != ResponseCode.SUCCESS:
            raise MasterRefused(f"master {self.address} refused request {code}: {answer.remark}")
        return answer

    async def ask_json(self, code: int, ext: dict[str, str] | None = None) -> dict[Any, Any]:
        answer = await self.ask(code, ext)
        try:
            content = fastjson.loads(answer.body) if answer.body else {}
        except fastjson.JsonError as error:
            raise LinkError(f"master {self.address} answered {code} with {error}") from None
        return content if isinstance(content, dict) else {}

    def close(self) -> None:
        self._link.close()


def _ha_address(main: str, settings: dict[str, str]) -> str:
    host, _, port = main.rpartition(":")
    ha_port = int(settings.get("haListenPort") or 0)
    return join(settings.get("brokerIP2") or host.strip("[]"), max(ha_port, 0) or int(port) + 1)


def _nothing() -> None:
    """The next request opens the connection again."""
