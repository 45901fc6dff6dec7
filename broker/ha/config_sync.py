"""Keeps a slave's configuration in step with its master's: topics, groups, offsets, progress.

Each part has a request that answers with the file's text. Our own masters are asked each second,
and send a table only if it has changed; a Java master sends all of it each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.ha.master_client import MasterAddress, MasterClient
from aerobee.broker.net.request_link import LinkError
from aerobee.broker.services.batch_ledger import BatchLedger
from aerobee.broker.services.config_files.config_file import DataVersion, as_int
from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.groups.table import Groups
from aerobee.broker.services.ledger_log import end_of
from aerobee.broker.services.offsets import Offsets
from aerobee.broker.services.timers.checkpoint import Checkpoints
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.services.topics.table import Topics
from aerobee.protocol.names import SYSTEM_TOPIC_PREFIX
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.sink_codes import SINK_LIST

if TYPE_CHECKING:
    from aerobee.broker.settings import Settings
from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.ha")

Part = Callable[[MasterClient], Coroutine[Any, Any, None]]

OURS_S: Final = 1.0
JAVA_S: Final = 3.0
LOOK_S: Final = 0.1


class ConfigSync:
    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        clock: Clock,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        schedule: Schedule,
        timers: Checkpoints | None,
        ledger: BatchLedger,
        followed: Callable[[], MasterAddress | None],
    ) -> None:
        """`followed` tells the master whose log we follow at this moment."""
        self._settings = settings
        self._store = store
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._schedule = schedule
        self._timers = timers
        self._ledger = ledger
        self._followed = followed
        self._client: MasterClient | None = None
        self._is_ours: bool | None = None  # None: not known yet
        self._told = ""
        self.synced_ms = 0  # when the last round was through

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        try:
            while True:
                await self.step()
                await self._pause(JAVA_S if self._is_ours is False else OURS_S)
        finally:
            self._leave()

    async def _pause(self, seconds: float) -> None:
        """Less when records of new queues come: their topic is asked for at once; or when another
        master, or none, is followed."""
        queues, master = self._store.queue_table.table, self._followed()
        known, until = len(queues), self._clock.monotonic() + seconds
        while len(queues) == known and self._clock.monotonic() < until:
            await self._clock.sleep(LOOK_S)
            if self._followed() != master:
                return

    async def step(self) -> None:
        """One round with the master of now."""
        master = self._followed()
        if master is None:
            self._leave()
            self._add_unknown_topics()
            return
        if self._client is None or self._client.address != master.main:
            self._leave()
            self._client = MasterClient(master.main, self._settings)
            self._is_ours = None
        try:
            if self._is_ours is None:
                self._is_ours = (await self._client.facts()).is_ours
            for part in self._parts():
                await part(self._client)
        except (LinkError, OSError, ValueError) as error:
            if str(error) != self._told:
                self._told = str(error)
                log.warning("the configuration is not in step", reason=self._told)
            self._leave()
            self._add_unknown_topics()
            return
        if self._told:
            self._told = ""
            log.info("the configuration is in step again")
        self.synced_ms = self._clock.now_ms()

    def _leave(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _parts(self) -> list[Part]:
        parts: list[Part] = [
            self._sync_topics,
            self._sync_groups,
            self._sync_offsets,
            self._sync_delays,
        ]
        if self._timers is not None:
            parts.append(self._sync_timers)
        if self._is_ours:
            parts.append(self._sync_ledger)
        return parts

    async def _table(
        self, client: MasterClient, code: int, prefix: str, version: DataVersion
    ) -> dict[Any, Any] | None:
        """A table of the master's; None when it is the one that we have."""
        if self._is_ours:
            nothing = {f"{prefix}Seq": "0", f"max{prefix.capitalize()}Num": "0"}
            theirs = DataVersion()
            theirs.load((await client.ask_json(code, nothing)).get("dataVersion"))
            if theirs == version:
                return None
        return await client.ask_json(code)

    async def _sync_topics(self, client: MasterClient) -> None:
        version = self._topics.data_version
        table = await self._table(client, RequestCode.GET_ALL_TOPIC_CONFIG, "topic", version)
        if table is not None:
            for name in self._topics.take_over(table):
                log.info("a topic is gone from the master", topic=name)
                self._store.delete_topic(name)

    async def _sync_groups(self, client: MasterClient) -> None:
        version = self._groups.data_version
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        table = await self._table(client, code, "group", version)
        if table is not None:
            self._groups.take_over(table)

    async def _sync_offsets(self, client: MasterClient) -> None:
        self._offsets.take_over(await client.ask_json(RequestCode.GET_ALL_CONSUMER_OFFSET))

    async def _sync_delays(self, client: MasterClient) -> None:
        self._schedule.take_over(await client.ask_json(RequestCode.GET_ALL_DELAY_OFFSET))

    async def _sync_timers(self, client: MasterClient) -> None:
        """4.9 has no timers."""
        assert self._timers is not None
        try:
            answer = await client.ask(RequestCode.GET_TIMER_CHECK_POINT)
        except LinkError:
            return
        mark = as_int(answer.ext.get("logOffset"), self._store.flushed_offset)
        if answer.body:
            await asyncio.to_thread(self._timers.take_over, bytes(answer.body), mark)

    async def _sync_ledger(self, client: MasterClient) -> None:
        """Batches that were committed longer ago than the log goes back; what is new is in it."""
        noted_end = end_of(self._store)  # what is noted below it, the answer knows
        queries = (await client.ask_json(SINK_LIST)).get("queries") or []
        if self._ledger.take_over(queries, noted_end):
            await self._ledger.save()

    def _add_unknown_topics(self) -> None:
        """The master is away, and may never come back: what it has sent of a topic that it did not
        tell us of yet shall be readable."""
        for topic, queues in self._store.queues().items():
            if self._topics.get(topic) is None and not topic.startswith(SYSTEM_TOPIC_PREFIX):
                count = max(queues) + 1
                self._topics.put(TopicConfig(topic, count, count))
