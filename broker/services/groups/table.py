"""The consumer groups of this broker and what each may do; config/subscriptionGroup.json."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from aerobee.broker.base import resource_names
from aerobee.broker.base.clock import Clock
from aerobee.broker.services.config_files.config_file import DataVersion, as_int
from aerobee.broker.services.config_files.named_table import VERSION, NamedTable
from aerobee.broker.services.groups.config import GroupConfig, group_from_json
from aerobee.broker.settings import Settings
from aerobee.broker.store.files.disk import Disk
from aerobee.protocol import names
from aerobee.protocol.files.config_journal import Change, Path

log = structlog.get_logger("aerobee.groups")

_FORBIDDEN_READ: Final = 1 << 2  # the bit of the forbidden table that stops a group's reading
_TABLE: Final = "subscriptionGroupTable"
_FORBIDDEN: Final = "forbiddenTable"


class Groups(NamedTable[GroupConfig]):
    """Every group by name."""

    def __init__(
        self, path: str, settings: Settings, clock: Clock, disk: Disk | None = None
    ) -> None:
        super().__init__(path, settings, clock, disk)
        self._forbidden: dict[str, dict[str, int]] = {}  # group -> topic -> bits
        self._full_logged = False

    # --- reading

    def find(self, name: str) -> GroupConfig | None:
        """The group if it is there."""
        return self._table.get(name)

    def get(self, name: str) -> GroupConfig | None:
        """The group, made on its first use; None when it may not be made."""
        config = self._table.get(name)
        return config if config is not None else self._create(name)

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether an operator has forbidden the group to read this topic."""
        if not self._forbidden:
            return False
        return bool(self._forbidden.get(group, {}).get(topic, 0) & _FORBIDDEN_READ)

    # --- start and stop

    def load(self) -> None:
        """Read the file, then add the boot groups that it lacks."""
        forbidden, table = self._read((_FORBIDDEN, _TABLE))
        self._table = _groups_of(table)
        self._load_forbidden(forbidden)
        missing = [name for name in names.SYSTEM_GROUPS if name not in self._table]
        for name in missing:
            self._table[name] = GroupConfig(name)
        if missing:
            self.next_version(*((_TABLE, name) for name in missing))

    def _load_forbidden(self, table: Any) -> None:
        for group, topics in (table if isinstance(table, dict) else {}).items():
            if isinstance(topics, dict):
                self._forbidden[str(group)] = {
                    str(topic): as_int(bits, 0) for topic, bits in topics.items()
                }

    # --- changing

    def _create(self, name: str) -> GroupConfig | None:
        settings = self._settings
        system = names.is_system_group(name)
        if not (settings.auto_create_subscription_group or system):
            return None
        if resource_names.group_problem(name):
            return None
        if len(self._table) >= settings.max_groups and not system:
            if not self._full_logged:
                self._full_logged = True
                log.warning(
                    "no more groups are created by clients; raise maxGroups or delete groups",
                    max_groups=settings.max_groups,
                    refused=name,
                )
            return None
        config = GroupConfig(name)
        if not settings.is_slave:  # its master makes groups
            self.put(config)
        return config

    def put(self, config: GroupConfig) -> None:
        """Create or replace a group; the caller has checked the name."""
        if self._table.get(config.name) == config:
            return
        known = config.name in self._table
        self._table[config.name] = config
        self._note(config.name)
        log.info("group changed" if known else "group created", group=config.name)

    def delete(self, name: str) -> GroupConfig | None:
        """Delete a group; the caller removes its offsets."""
        config = self._table.pop(name, None)
        forbidden = self._forbidden.pop(name, None)
        if config is not None or forbidden is not None:
            self._full_logged = False
            self._note(name)
            log.info("group deleted", group=name)
        return config

    def set_forbidden(self, group: str, topic: str, forbidden: bool) -> None:
        """Forbid a group to read a topic, or allow it again."""
        topics = self._forbidden.setdefault(group, {})
        bits = topics.get(topic, 0)
        bits = bits | _FORBIDDEN_READ if forbidden else bits & ~_FORBIDDEN_READ
        if bits:
            topics[topic] = bits
        else:
            topics.pop(topic, None)
            if not topics:
                del self._forbidden[group]
        self._note(group)

    def take_over(self, content: Mapping[Any, Any]) -> None:
        """On a slave: replace the groups by the master's."""
        version = DataVersion()
        version.load(content.get("dataVersion"))
        table = content.get(_TABLE)
        if version == self.data_version or not isinstance(table, dict):
            return
        before = self._table
        self._table = _groups_of(table)
        forbidden_before, self._forbidden = self._forbidden, {}
        self._load_forbidden(content.get(_FORBIDDEN))
        names = before.keys() | self._table.keys()
        changed = [name for name in names if before.get(name) != self._table.get(name)]
        barred = forbidden_before.keys() | self._forbidden.keys()
        self.data_version = version
        self.file.changed(
            (VERSION,),
            *((_TABLE, name) for name in changed),
            *((_FORBIDDEN, name) for name in barred),
        )
        self._notify(changed)

    # --- the file

    def _note(self, name: str) -> None:
        self._changed(name, (_TABLE, name), (_FORBIDDEN, name))

    def table_json(self) -> dict[str, Any]:
        """As the file and GET_ALL_SUBSCRIPTIONGROUP_CONFIG have it."""
        return {
            "dataVersion": self.data_version.to_json(),
            _FORBIDDEN: {group: dict(topics) for group, topics in self._forbidden.items()},
            _TABLE: {name: config.to_json() for name, config in self._table.items()},
        }

    def _entries(self) -> Iterator[Change]:
        yield from super()._entries()
        for section, table in ((_FORBIDDEN, self._forbidden), (_TABLE, self._table)):
            if not table:
                yield (section,), {}
            for name in list(table):
                value = self._value_of((section, name))
                if value is not None:
                    yield (section, name), value

    def _value_of(self, path: Path) -> Any:
        if len(path) == 1:
            return self.data_version.to_json()
        section, name = path
        if section == _FORBIDDEN:
            topics = self._forbidden.get(name)
            return dict(topics) if topics is not None else None
        config = self._table.get(name)
        return config.to_json() if config is not None else None


def _groups_of(table: Mapping[Any, Any]) -> dict[str, GroupConfig]:
    return {
        str(name): replace(group_from_json(value, str(name)), name=str(name))
        for name, value in table.items()
        if isinstance(value, dict)
    }
