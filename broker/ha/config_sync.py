"""Keeps a slave's configuration in sync with its master's: topics, groups, users, progress.

Each part has a request that answers with the file's text. Our own masters are polled each second,
and send a table only if it has changed; a Java master sends all of it each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.ha.access_sync import AccessSync
from aerobee.broker.ha.master_client import MasterAddress, MasterClient, MasterFacts
from aerobee.broker.ha.progress import ProgressSync
from aerobee.broker.net.request_link import LinkError
from aerobee.broker.services.config_files.config_file import DataVersion
from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.groups.table import Groups
from aerobee.broker.services.ledger_book import LedgerBook
from aerobee.broker.services.offsets import Offsets
from aerobee.broker.services.timers.checkpoint import Checkpoints
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.services.topics.table import Topics
from aerobee.protocol.names import SYSTEM_TOPIC_PREFIX
from aerobee.protocol.wire.codes import RequestCode

if TYPE_CHECKING:
    from aerobee.broker.settings import Settings
from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.ha")

OURS_S: Final = 1.0
JAVA_S: Final = 3.0
CHECK_S: Final = 0.1


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
        ledger: LedgerBook,
        access: AccessSync,
        followed: Callable[[], MasterAddress | None],
    ) -> None:
        """`followed` returns the master whose log we follow at the moment."""
        self._settings = settings
        self._store = store
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._progress = ProgressSync(store, clock, offsets, schedule, timers, ledger)
        self._access = access
        self._followed = followed
        self._client: MasterClient | None = None
        self._facts: MasterFacts | None = None  # of the master that `_client` asks
        self._logged = ""

    async def run(self) -> None:
        """Poll the master until cancelled."""
        try:
            while True:
                await self.step()
                is_java = self._facts is not None and not self._facts.is_ours
                await self._pause(JAVA_S if is_java else OURS_S)
        finally:
            self._leave()

    async def _pause(self, seconds: float) -> None:
        """Wait for the next round: cut short by records of a new topic, whose settings are needed
        at once, and by a change of the master."""
        queues, master = self._store.queue_table.table, self._followed()
        known, until = len(queues), self._clock.monotonic() + seconds
        while len(queues) == known and self._clock.monotonic() < until:
            await self._clock.sleep(CHECK_S)
            if self._followed() != master:
                return

    async def step(self) -> None:
        """One round with the present master."""
        master = self._followed()
        if master is None:
            self._leave()
            self._add_unknown_topics()
            return
        if self._client is None or self._client.address != master.main:
            self._leave()
            self._client = MasterClient(master.main, self._settings)
            self._facts = None
        try:
            if self._facts is None:
                self._facts = await self._client.facts()
            await self._sync(self._client, self._facts)
        except (LinkError, OSError, ValueError) as error:
            if str(error) != self._logged:
                self._logged = str(error)
                log.warning("the configuration is not in sync", reason=self._logged)
            self._leave()
            self._add_unknown_topics()
            return
        if self._logged:
            self._logged = ""
            log.info("the configuration is in sync again")

    def _leave(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        self._progress.forget()
        self._access.forget()

    async def _sync(self, client: MasterClient, facts: MasterFacts) -> None:
        def is_followed() -> bool:
            return self._is_of_followed(client)

        await self._sync_topics(client, facts)
        await self._sync_groups(client, facts)
        await self._access.step(client, facts, is_followed)
        await self._progress.step(client, is_ours=facts.is_ours, is_followed=is_followed)

    def _is_of_followed(self, client: MasterClient) -> bool:
        """Whether an answer is still valid: the link may have been lost meanwhile."""
        master = self._followed()
        return master is not None and master.main == client.address

    async def _table(
        self, client: MasterClient, facts: MasterFacts, code: int, prefix: str, version: DataVersion
    ) -> dict[Any, Any] | None:
        """A table of the master; None when it is unchanged."""
        if facts.is_ours:
            nothing = {f"{prefix}Seq": "0", f"max{prefix.capitalize()}Num": "0"}
            theirs = DataVersion()
            theirs.load((await client.ask_json(code, nothing)).get("dataVersion"))
            if theirs == version:
                return None
        return await client.ask_json(code)

    async def _sync_topics(self, client: MasterClient, facts: MasterFacts) -> None:
        version, code = self._topics.data_version, RequestCode.GET_ALL_TOPIC_CONFIG
        table = await self._table(client, facts, code, "topic", version)
        if table is not None and self._is_of_followed(client):
            for name in self._topics.take_over(table):
                log.info("a topic is gone from the master", topic=name)
                self._store.delete_topic(name)

    async def _sync_groups(self, client: MasterClient, facts: MasterFacts) -> None:
        version = self._groups.data_version
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        table = await self._table(client, facts, code, "group", version)
        if table is not None and self._is_of_followed(client):
            self._groups.take_over(table)

    def _add_unknown_topics(self) -> None:
        """The master is unreachable, and may never come back."""
        add_unknown_topics(self._store, self._topics)


def add_unknown_topics(store: MessageStore, topics: Topics) -> None:
    """Make messages readable whose topic the master had not announced yet."""
    for topic, queues in store.queues().items():
        if topics.get(topic) is None and not topic.startswith(SYSTEM_TOPIC_PREFIX):
            count = max(queues) + 1
            topics.put(TopicConfig(topic, count, count))
