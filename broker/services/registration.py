"""Registers this broker with name servers, ours or Apache's: at the start, every 30 s, and as soon
as a topic changes or a name server comes back."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection
from time import perf_counter
from typing import Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.net.addresses import Addresses
from aerobee.broker.net.inner_client import inner_credentials, inner_tls
from aerobee.broker.net.request_link import LinkError, RequestLink
from aerobee.broker.services.name_service.registration_body import compressed_slices, plain_slices
from aerobee.broker.services.name_service.route_data import permission_mask
from aerobee.broker.services.topics.table import Topics
from aerobee.broker.settings import Settings
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codecs import ProtocolError
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

log = structlog.get_logger("aerobee.registration")

_CRC_MASK: Final = 0x7FFFFFFF
_TOGETHER_S: Final = 0.05  # changes of topics within this time are registered together
_REST_PER_COST: Final = 20.0  # pause after making a body, as a multiple of the time it took
_COME_BACK_S: Final = 1.0  # how soon to look for a name server that went away
_TRY_AGAIN_S: Final = 5.0  # while one cannot be reached
_PATIENCE_S: Final = 1.0  # with one that is slow
_PERIOD_BOUNDS_S: Final = (10.0, 60.0)
LAST_WORD_S: Final = 3.0


class Registrar:
    """Keeps every name server of `namesrvAddr` informed."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        topics: Topics,
        addresses: Addresses,
        own_ports: Collection[int] = (),
        on_master: Callable[[str, str], None] | None = None,
        lacks_master: Callable[[], bool] | None = None,
        superseded: Callable[[int, str], None] | None = None,
        on_epoch: Callable[[int], None] | None = None,
    ) -> None:
        """`own_ports`: where this process is a name server itself, which needs no registration.

        A slave: `on_master` is called with the addresses of its master, for requests and for
        replication; while it `lacks_master` it asks more often; `on_epoch` is called with the
        greatest epoch that a name server knows. A master: `superseded` is called with the epoch
        of a later master that a name server knows, and the reason it gives."""
        self._superseded = superseded
        self._on_epoch = on_epoch
        self._epoch_max = 0  # of the newest master that a name server has reported
        self._settings = settings
        self._clock = clock
        self._topics = topics
        self._addresses = addresses
        self._own_ports = own_ports
        self._on_master = on_master
        self._lacks_master = lacks_master
        self._wake = asyncio.Event()
        self._failing: set[str] = set()
        self._slow: dict[RequestLink, asyncio.Task[list[str]]] = {}  # not answered yet
        self._stopping = False
        self._body: asyncio.Task[bytes] | None = None  # of this round, for all name servers
        self._cost_s = 0.0  # how long the loop took to make it
        servers = [part.strip() for part in settings.namesrv_addr.split(";")]
        credentials, tls = inner_credentials(settings), inner_tls(settings)
        self.links = [
            RequestLink(server, self._lost, credentials, tls) for server in servers if server
        ]
        self._gone = False
        topics.on_change.append(lambda _topic: self._wake.set())

    def changed(self) -> None:
        """Something that is registered has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Register now and again, until cancelled."""
        while self.links:
            self._wake.clear()
            await self.register()
            low, high = _PERIOD_BOUNDS_S
            period = min(max(self._settings.register_name_server_period / 1000, low), high)
            if self._failing or self._slow or (self._lacks_master and self._lacks_master()):
                period = min(period, _TRY_AGAIN_S)
            await self._sleep_or_wake(period)
            if self._gone:
                self._gone = False
                await self._clock.sleep(_COME_BACK_S)
            elif self._wake.is_set():
                await self._clock.sleep(max(_TOGETHER_S, self._cost_s * _REST_PER_COST))

    async def register(self) -> None:
        """Register with all name servers at once; failures are logged and retried.

        A slow one continues in the background and does not delay the others."""
        for link in [link for link, task in self._slow.items() if task.done()]:
            self._slow.pop(link).result()
        self._body = None
        asked = {
            link: asyncio.create_task(self._register_with(link))
            for link in self.links
            if link not in self._slow
        }
        self._slow |= asked
        if asked:
            await asyncio.wait(asked.values(), timeout=_PATIENCE_S)
        ordered = [self._slow.pop(link).result() for link, task in asked.items() if task.done()]
        # Of the first that has any, as upstream: they may not agree, and each change would be
        # reported to all of them at once again.
        if not self._settings.is_slave:  # which has its master's topics
            self._topics.set_order_topics(next(filter(None, ordered), ()))
        for link in [link for link in self.links if self._is_ourselves(link)]:
            log.info("a name server is this process itself", name_server=link.address)
            self.links.remove(link)
            link.close()

    def _is_ourselves(self, link: RequestLink) -> bool:
        return link.peer[0] == link.local[0] and link.peer[1] in self._own_ports

    async def stop(self, seconds: float = LAST_WORD_S) -> None:
        """Unregister from all name servers; wait at most this long for their answers."""
        self._stopping = True
        tasks: list[asyncio.Task[Any]] = [*self._slow.values()]
        if self._body is not None:
            tasks.append(self._body)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(self._unregister_from(link, seconds) for link in self.links))

    async def _register_with(self, link: RequestLink) -> list[str]:
        """Register with one name server; returns the topics that it declares ordered."""
        timeout = self._settings.register_broker_timeout_mills / 1000
        try:
            await link.connect(timeout)
            if self._is_ourselves(link):
                return []
            by_version = not (self._settings.force_register or self._settings.is_slave)
            if by_version and not await self._is_changed(link, timeout):
                return []
            if self._body is None:
                self._body = asyncio.create_task(self._make_body())
            body = await asyncio.shield(self._body)
            answer = await link.request(self._registration(link, body), timeout)
            if answer.code != ResponseCode.SUCCESS:
                if self._superseded is not None and answer.ext.get("masterEpoch"):
                    self._superseded(int(answer.ext["masterEpoch"]), str(answer.remark))
                raise LinkError(
                    f"name server {link.address} refused our registration: {answer.remark}"
                )
            ordered = _order_topics(answer)
            self._report_master(answer)
        except (LinkError, ProtocolError, ValueError) as error:  # of numbers and JSON
            if link.address not in self._failing:
                self._failing.add(link.address)
                log.warning("not registered", name_server=link.address, reason=str(error))
            return []
        if link.address in self._failing:
            self._failing.discard(link.address)
            log.info("registered again", name_server=link.address)
        return ordered

    def _report_master(self, answer: Command) -> None:
        """On a slave: report our master, as the name server knows it. A name server may still know
        an earlier master, as long as that is alive."""
        epoch = int(answer.ext.get("masterEpoch") or 0)
        if epoch and self._on_epoch is not None:
            self._on_epoch(epoch)
        self._epoch_max = max(self._epoch_max, epoch)
        master = answer.ext.get("masterAddr"), answer.ext.get("haServerAddr")
        is_older = 0 < epoch < self._epoch_max
        if self._on_master is not None and all(master) and not is_older:
            self._on_master(str(master[0]), str(master[1]))

    async def _is_changed(self, link: RequestLink, seconds: float) -> bool:
        query = Command(
            RequestCode.QUERY_DATA_VERSION,
            self._identity(link),
            fastjson.dumps(self._topics.data_version.to_json()),
        )
        answer = await link.request(query, seconds)
        return answer.code != ResponseCode.SUCCESS or answer.ext.get("changed") != "false"

    async def _make_body(self) -> bytes:
        """Make the body in slices, so that the loop serves others in between."""
        encode = compressed_slices if self._settings.compressed_register else plain_slices
        mask = permission_mask(self._settings.broker_permission)
        slices = encode(self._topics.data_version.to_json(), self._topics.all(), mask)
        cost_s = 0.0
        while True:
            began = perf_counter()
            try:
                next(slices)
            except StopIteration as made:
                self._cost_s = cost_s
                body: bytes = made.value
                return body
            cost_s += perf_counter() - began
            await asyncio.sleep(0)

    def _registration(self, link: RequestLink, body: bytes) -> Command:
        ext = self._identity(link) | {
            "bodyCrc32": str(zlib.crc32(body) & _CRC_MASK),
            "compressed": "true" if self._settings.compressed_register else "false",
            "enableActingMaster": "false",
            "haServerAddr": self._addresses.ha_address(self._addresses.for_name_server(link.local)),
        }
        return Command(RequestCode.REGISTER_BROKER, ext, body)

    def _identity(self, link: RequestLink) -> dict[str, str]:
        return {
            "brokerAddr": self._addresses.for_name_server(link.local),
            "brokerId": str(self._settings.broker_id),
            "brokerName": self._settings.broker_name,
            "clusterName": self._settings.broker_cluster_name,
        }

    async def _unregister_from(self, link: RequestLink, seconds: float) -> None:
        try:
            command = Command(RequestCode.UNREGISTER_BROKER, self._identity(link))
            await link.request(command, seconds)
        except LinkError as error:
            log.info("not unregistered", name_server=link.address, reason=str(error))
        link.close()

    def _lost(self) -> None:
        if not self._stopping:
            self._gone = True
            self._wake.set()

    async def _sleep_or_wake(self, seconds: float) -> None:
        sleep = asyncio.ensure_future(self._clock.sleep(seconds))
        wake = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({sleep, wake}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            wake.cancel()


def _order_topics(answer: Command) -> list[str]:
    content = fastjson.loads(answer.body) if answer.body else None
    table = content.get("table") if isinstance(content, dict) else None
    return [str(topic) for topic in table] if isinstance(table, dict) else []
