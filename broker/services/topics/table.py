"""The topics of this broker: boot topics, creation by sends, permissions; config/topics.json."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from aerobee.broker.base import resource_names
from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.services.config_files.config_file import DataVersion
from aerobee.broker.services.config_files.named_table import VERSION, NamedTable
from aerobee.broker.services.config_files.table_file import Saved
from aerobee.broker.services.topics.config import (
    INHERIT,
    READ,
    UNIT_SUB_FLAG,
    WRITE,
    TopicConfig,
    topic_from_json,
)
from aerobee.broker.settings import Settings
from aerobee.broker.store.files.disk import Disk
from aerobee.protocol import names
from aerobee.protocol.files.config_journal import Change, Path
from aerobee.protocol.wire.codes import ResponseCode

log = structlog.get_logger("aerobee.topics")

_READ_WRITE: Final = READ | WRITE
_ALL: Final = READ | WRITE | INHERIT
_TABLE: Final = "topicConfigTable"


class Topics(NamedTable[TopicConfig]):
    """Every topic by name."""

    def __init__(
        self, path: str, settings: Settings, clock: Clock, disk: Disk | None = None
    ) -> None:
        super().__init__(path, settings, clock, disk)
        self._unread: dict[str, Any] = {}  # topics whose names would leave their folder, kept
        self._system = names.SYSTEM_TOPICS
        self._new: set[str] = set()  # those that were not saved yet, and some that are by now

    # --- reading

    def get(self, name: str) -> TopicConfig | None:
        return self._table.get(name)

    def is_durable(self, name: str) -> bool:
        """Whether the topic survives a crash; later changes of it may still be unsaved."""
        return name not in self._new or self.file.holds((_TABLE, name))

    def when_durable(self, name: str, then: Saved) -> None:
        """Call back once this topic is on disk, or with the reason why it is not."""
        self.file.when_saved(then, (_TABLE, name))

    @property
    def are_durable(self) -> bool:
        """Whether all topics survive a crash."""
        return not self._new or self.file.is_saved

    def is_system(self, name: str) -> bool:
        """Whether the broker keeps the topic for itself."""
        return name in self._system or name.startswith(names.SYSTEM_TOPIC_PREFIX)

    def system_topics(self) -> list[str]:
        """The system topics that exist, and those that may come to exist."""
        present = {name for name in self._table if self.is_system(name)}
        return sorted(present | self._system)

    # --- start and stop

    def load(self) -> None:
        """Read the file, then add the boot topics that it lacks."""
        [table] = self._read((_TABLE,))
        for key, value in table.items():
            self._load_topic(str(key), value)
        self._add_boot_topics()

    def _load_topic(self, name: str, value: Any) -> None:
        if not isinstance(value, dict) or not resource_names.is_safe_as_folder(name):
            log.error("a topic of the config file is left out: its name is unsafe", topic=name)
            self._unread[name] = value
            return
        self._table[name] = replace(topic_from_json(value, name), name=name)

    def _add_boot_topics(self) -> None:
        boot = list(boot_topics(self._settings))
        self._system = names.SYSTEM_TOPICS | {topic.name for topic in boot}
        added = [topic for topic in boot if topic.name not in self._table]
        template = self._wanted_template()
        if template is not None and self._table.get(template.name) != template:
            added.append(template)
        for topic in added:
            self._table[topic.name] = topic
        if added:
            self.next_version(*((_TABLE, topic.name) for topic in added))

    def _wanted_template(self) -> TopicConfig | None:
        """The template, without INHERIT if sends may not create topics."""
        name, count = names.TEMPLATE_TOPIC, self._settings.default_topic_queue_nums
        template = self._table.get(name)
        if self._settings.auto_create_topic_enable:
            template = template or TopicConfig(name, count, count, _ALL)
            return replace(template, perm=template.perm | INHERIT)
        return replace(template, perm=template.perm & ~INHERIT) if template else None

    def follow_settings(self) -> None:
        """Apply changed settings: whether sends may create topics."""
        template = self._wanted_template()
        if template is not None:
            self.put(template)

    # --- changing

    def put(self, config: TopicConfig) -> None:
        """Create or replace a topic; the caller has checked the name."""
        if self._table.get(config.name) == config:
            return
        known = config.name in self._table
        if not known:
            if self.file.is_saved:
                self._new.clear()
            self._new.add(config.name)
        self._table[config.name] = config
        self._changed(config.name, (_TABLE, config.name))
        log.info(
            "topic changed" if known else "topic created",
            topic=config.name,
            queues=config.queue_nums,
            perm=config.perm,
        )

    def delete(self, name: str) -> TopicConfig | None:
        """Delete a topic; the caller removes its messages and offsets."""
        config = self._table.pop(name, None)
        if config is not None:
            self._changed(name, (_TABLE, name))
            log.info("topic deleted", topic=name)
        return config

    def create_on_send(
        self, topic: str, default_topic: str, queue_nums: int, *, unit_sub: bool = False
    ) -> TopicConfig:
        """The topic that a send names, made from its template when new; Refused says why not."""
        config = self._table.get(topic)
        if config is not None:
            return config
        if problem := resource_names.topic_problem(topic):
            raise Refused(ResponseCode.INVALID_PARAMETER, problem)
        if resource_names.is_retry_topic(topic):
            group = topic.removeprefix(names.RETRY_PREFIX)
            if problem := resource_names.group_problem(group):
                raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, problem)
            return self.create_retry(group)
        template = self._template(topic, default_topic)
        count = max(1, min(queue_nums, template.write_queue_nums, self._settings.max_queue_nums))
        config = TopicConfig(
            topic,
            count,
            count,
            template.perm & ~INHERIT,
            template.topic_filter_type,
            UNIT_SUB_FLAG if unit_sub else 0,
        )
        self.put(config)
        return config

    def _template(self, topic: str, default_topic: str) -> TopicConfig:
        settings = self._settings
        reason = ""
        template = self._table.get(default_topic)
        if default_topic == names.TEMPLATE_TOPIC and not settings.auto_create_topic_enable:
            reason = "autoCreateTopicEnable is false"
        elif template is None:
            reason = f"its template {default_topic!r} does not exist"
        elif not template.inheritable:
            reason = f"{default_topic} is not a template (its perm {template.perm} lacks 1)"
        elif len(self._table) >= settings.max_topics:
            reason = f"the broker has {len(self._table)} topics and maxTopics={settings.max_topics}"
        else:
            return template
        raise Refused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{topic}] not exist and was not created: {reason}; create it with "
            f"`aerobee topic create {topic}` or mqadmin updateTopic",
        )

    def create_retry(
        self, group: str, queue_nums: int = 1, *, order: bool = False, unit: bool = False
    ) -> TopicConfig:
        """%RETRY%group, made when it is not there."""
        return self._create_for_group(names.retry_topic(group), queue_nums, order, unit)

    def create_dlq(self, group: str) -> TopicConfig:
        """%DLQ%group, made when it is not there: one queue, readable."""
        return self._create_for_group(names.dlq_topic(group), 1, False, False)

    def _create_for_group(self, name: str, queue_nums: int, order: bool, unit: bool) -> TopicConfig:
        config = self._table.get(name)
        if config is not None:
            return config
        if problem := resource_names.topic_problem(name):
            raise Refused(ResponseCode.INVALID_PARAMETER, problem)
        most = self._settings.max_topics + 2 * self._settings.max_groups
        if len(self._table) >= most:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist and was not created: the broker has {most} topics "
                "(maxTopics and two for each of maxGroups); delete some or raise the limits",
            )
        count = max(1, min(queue_nums, self._settings.max_queue_nums))
        config = TopicConfig(
            name,
            count,
            count,
            _READ_WRITE,
            topic_sys_flag=UNIT_SUB_FLAG if unit else 0,
            order=order,
        )
        self.put(config)
        return config

    def create_system(self, name: str, queue_nums: int) -> TopicConfig:
        """A topic that a service of the broker needs, made when it is not there."""
        config = self._table.get(name)
        if config is None:
            config = TopicConfig(name, queue_nums, queue_nums, _READ_WRITE)
            self._system = self._system | {name}
            self.put(config)
        return config

    def set_order_topics(self, names: Iterable[str]) -> None:
        """What name servers keep in ORDER_TOPIC_CONFIG decides which topics are ordered."""
        ordered = set(names)
        for config in list(self._table.values()):
            if config.name in ordered and not config.order:
                self.put(replace(config, order=True))
            elif config.order and config.name not in ordered and ordered:
                self.put(replace(config, order=False))

    def take_over(self, content: Mapping[Any, Any]) -> list[str]:
        """On a slave: replace the topics by the master's; returns the removed names."""
        version = DataVersion()
        version.load(content.get("dataVersion"))
        table = content.get(_TABLE)
        if version == self.data_version or not isinstance(table, dict):
            return []
        gone = [name for name in self._table if name not in table]
        before = dict(self._table)
        self._unread.clear()
        for name in gone:
            del self._table[name]
        for key, value in table.items():
            self._load_topic(str(key), value)
        changed = gone + [
            name for name, config in self._table.items() if before.get(name) != config
        ]
        self.data_version = version
        self.file.changed((VERSION,), *((_TABLE, name) for name in changed))
        self._notify(changed)
        return gone

    # --- the file

    def table_json(self) -> dict[str, Any]:
        """dataVersion and topicConfigTable, as the file and GET_ALL_TOPIC_CONFIG have them."""
        return {
            "dataVersion": self.data_version.to_json(),
            _TABLE: {name: config.to_json() for name, config in self._table.items()},
        }

    def _entries(self) -> Iterator[Change]:
        yield from super()._entries()
        for name in [*self._table, *self._unread]:
            value = self._value_of((_TABLE, name))
            if value is not None:
                yield (_TABLE, name), value

    def _value_of(self, path: Path) -> Any:
        if len(path) == 1:
            return self.data_version.to_json()
        config = self._table.get(path[1])
        return config.to_json() if config is not None else self._unread.get(path[1])


def boot_topics(settings: Settings) -> Iterable[TopicConfig]:
    """The topics that every broker has from its first start, beside the template."""
    cluster, broker = settings.broker_cluster_name, settings.broker_name
    if settings.trace_topic_enable:
        yield TopicConfig(settings.msg_trace_topic_name, 1, 1)
    levels = len(settings.delay_levels_ms)
    yield TopicConfig(names.SELF_TEST_TOPIC, 1, 1)
    yield TopicConfig(names.BENCHMARK_TOPIC, 1024, 1024)
    yield TopicConfig(cluster, perm=_ALL if settings.cluster_topic_enable else INHERIT)
    yield TopicConfig(broker, 1, 1, _ALL if settings.broker_topic_enable else INHERIT)
    yield TopicConfig(names.OFFSET_MOVED_TOPIC, 1, 1)
    yield TopicConfig(names.SCHEDULE_TOPIC, levels, levels)
    yield TopicConfig(cluster + names.REPLY_SUFFIX, 1, 1)
    yield TopicConfig(f"{names.SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}", 8, 8)
    yield TopicConfig(f"{names.SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{broker}", 1, 1, INHERIT)
    yield TopicConfig(names.TRANSACTION_HALF_TOPIC, 1, 1)
    yield TopicConfig(names.TRANSACTION_OP_TOPIC, 1, 1)
    yield TopicConfig(names.TIMER_TOPIC, 1, 1)
