"""Each group's offset in each queue; config/consumerOffset.json.

The table is keyed as the file: "topic@group" -> queue id -> queue offset. Neither name may hold an
@, so the key can always be split again.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.config_files.config_file import DataVersion, as_int
from aerobee.broker.services.config_files.table_file import TableFile
from aerobee.broker.services.why.history import History
from aerobee.broker.store.files.disk import Disk
from aerobee.protocol.files.config_journal import Change, Path

log = structlog.get_logger("aerobee.offsets")

SEPARATOR: Final = "@"
_TABLE: Final = "offsetTable"
_FILE_KEYS: Final = ("dataVersion", _TABLE, "groupTopicMap")


class Offsets:
    """Committed offsets, saved every few seconds; pull offsets and pending resets in memory."""

    def __init__(
        self, path: str, clock: Clock, disk: Disk | None = None, history: History | None = None
    ) -> None:
        self.data_version = DataVersion(clock.now_ms())
        self.file = TableFile(path, clock, self._entries, self._value_of, disk)
        self._clock = clock
        self._table: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, tuple[int, str | None]]] = {}  # how far, by which client
        self._history = history
        self._resets: dict[str, dict[int, int]] = {}
        self._unknown: dict[str, Any] = {}
        self._masters: dict[str, dict[int, int]] = {}  # a slave: the last ones from its master

    # --- the hot path

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, or the one that a reset has set; -1 when there is none."""
        key = f"{topic}@{group}"
        if self._resets and (reset := self._resets.get(key, {}).get(queue_id)) is not None:
            return reset
        queues = self._table.get(key)
        return -1 if queues is None else queues.get(queue_id, -1)

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Store an offset. False, and nothing stored: it is negative, or a reset is pending."""
        if queue_offset < 0 or queue_id < 0:
            return False
        key = f"{topic}@{group}"
        if self._resets and queue_id in self._resets.get(key, ()):
            return False
        queues = self._table.get(key)
        if queues is None:
            queues = self._table[key] = {}
        if (was := queues.get(queue_id)) != queue_offset:
            if was is None:
                self._began(key, queue_id, queue_offset)
            queues[queue_id] = queue_offset
            if self._history is not None:
                self._history.moved(key)
            self.file.changed_lazily((_TABLE, key))
        return True

    def commit_pull(
        self,
        group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        pulled_at: int = 0,
        puller: str | None = None,
    ) -> None:
        """Remember how far the group has fetched, by a pull at `pulled_at`; lost at a stop."""
        key = f"{topic}@{group}"
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
        if queue_id not in queues and queue_id not in self._table.get(key, ()):
            self._began(key, queue_id, pulled_at)
        queues[queue_id] = queue_offset, puller

    def _began(self, key: str, queue_id: int, queue_offset: int) -> None:
        if self._history is not None:
            self._history.began(key, queue_id, queue_offset)

    @property
    def resets_wait(self) -> bool:
        """Whether a group's next pull is to be answered with a reset."""
        return bool(self._resets)

    def take_reset(self, group: str, topic: str, queue_id: int, pulled_at: int) -> int | None:
        """The offset to which a consumer that pulls at `pulled_at` must go; returned once."""
        key = f"{topic}@{group}"
        queues = self._resets.get(key)
        if queues is None or (reset := queues.pop(queue_id, None)) is None:
            return None
        if not queues:
            del self._resets[key]
        return None if reset == pulled_at else reset

    # --- reading

    def query_pull(self, group: str, topic: str, queue_id: int) -> int:
        """How far the group has fetched; what it has committed when that is not known."""
        pulled = self._pulled.get(f"{topic}@{group}", {}).get(queue_id, (-1, None))[0]
        return max(pulled, self.query(group, topic, queue_id))

    def progress(self, key: str) -> dict[int, tuple[int, int, str]]:
        """Queue id -> committed offset, how far it was pulled (-1: not known), by which client."""
        committed = self._table.get(key, {}) | self._resets.get(key, {})
        pulled = self._pulled.get(key, {})
        found = {}
        for queue_id in committed.keys() | pulled.keys():
            at, puller = pulled.get(queue_id, (-1, None))
            found[queue_id] = committed.get(queue_id, -1), at, puller or ""
        return found

    def queues_of(self, group: str, topic: str) -> dict[int, int]:
        """Queue id -> offset, a copy."""
        key = f"{topic}@{group}"
        return self._table.get(key, {}) | self._resets.get(key, {})

    def topics_of(self, group: str) -> list[str]:
        """The topics in which the group has an offset, by name."""
        tail = SEPARATOR + group
        return sorted(key[: -len(tail)] for key in self._table if key.endswith(tail))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have an offset in the topic, by name."""
        head = topic + SEPARATOR
        return sorted(key[len(head) :] for key in self._table if key.startswith(head))

    def pairs(self) -> Iterator[tuple[str, str]]:
        """(topic, group) of every entry."""
        for key in list(self._table):
            topic, _, group = key.rpartition(SEPARATOR)
            yield topic, group

    # --- administration

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set an offset for the group's next pull; commits before that pull do not replace it."""
        key = f"{topic}@{group}"
        self._resets.setdefault(key, {})[queue_id] = queue_offset
        self._table.setdefault(key, {})[queue_id] = queue_offset
        self._pulled.get(key, {}).pop(queue_id, None)
        self.file.changed_lazily((_TABLE, key))

    def clone(self, source_group: str, target_group: str, topic: str) -> int:
        """Give another group this group's offsets of a topic; returns how many queues."""
        queues = self._table.get(f"{topic}@{source_group}")
        if not queues:
            return 0
        key = f"{topic}@{target_group}"
        self._table[key] = dict(queues)
        self._resets.pop(key, None)
        self.file.changed_lazily((_TABLE, key))
        return len(queues)

    def delete_topic(self, topic: str) -> None:
        head = topic + SEPARATOR
        self._delete([key for key in self._keys() if key.startswith(head)])

    def delete_group(self, group: str) -> None:
        tail = SEPARATOR + group
        self._delete([key for key in self._keys() if key.endswith(tail)])

    def _keys(self) -> set[str]:
        return self._table.keys() | self._pulled.keys() | self._resets.keys()

    def _delete(self, keys: list[str]) -> None:
        for key in keys:
            self._table.pop(key, None)
            self._pulled.pop(key, None)
            self._resets.pop(key, None)
            self.file.changed_lazily((_TABLE, key))
        if self._history is not None:
            self._history.forget(keys)

    # --- the file

    def load(self) -> None:
        content = self.file.load() or {}
        self.data_version.load(content.get("dataVersion"))
        table = content.get(_TABLE)
        for key, queues in (table if isinstance(table, dict) else {}).items():
            if isinstance(queues, dict):
                offsets = {as_int(queue, -1): as_int(at, -1) for queue, at in queues.items()}
                self._table[str(key)] = {
                    queue: at for queue, at in offsets.items() if queue >= 0 and at >= 0
                }
        self._unknown = {str(key): value for key, value in content.items() if key not in _FILE_KEYS}

    def reset_past_end(self, queue_end: Callable[[str, int], int]) -> None:
        """Lower offsets that are past the ends of their queues, as after a power failure that lost
        messages which were consumed but not flushed: the messages that get their offsets next
        would not be consumed. Saved before any is stored, in case of another power failure."""
        changed: dict[str, None] = {}
        for key, queues in self._table.items():
            topic, _, group = key.rpartition(SEPARATOR)
            for queue_id, was in queues.items():
                now = max(0, queue_end(topic, queue_id))
                if was > now:
                    queues[queue_id] = now
                    changed[key] = None
                    log.warning(
                        "a group's progress was past its queue's end and is reset to it",
                        group=group,
                        topic=topic,
                        queue_id=queue_id,
                        was=was,
                        now=now,
                    )
        if changed:
            self.file.changed(*((_TABLE, key) for key in changed))

    def take_over(self, content: Mapping[Any, Any]) -> None:
        """On a slave: take the offsets that have changed on the master. Others are left alone:
        clients that found no master may have committed later ones here."""
        table = content.get(_TABLE)
        for key, queues in (table if isinstance(table, dict) else {}).items():
            if not isinstance(queues, dict):
                continue
            known = self._masters.setdefault(str(key), {})
            ours = self._table.setdefault(str(key), {})
            for queue, at in queues.items():
                queue_id, offset = as_int(queue, -1), as_int(at, -1)
                first = queue_id not in known
                if queue_id < 0 or offset < 0 or known.get(queue_id) == offset:
                    continue
                known[queue_id] = offset
                if first and ours.get(queue_id, -1) > offset:
                    continue
                if ours.get(queue_id) != offset:
                    ours[queue_id] = offset
                    self.file.changed_lazily((_TABLE, str(key)))
        for key in self._masters.keys() - {str(key) for key in table or ()}:
            del self._masters[key]
            self._delete([key])

    def table_json(self) -> dict[str, Any]:
        """As the file and GET_ALL_CONSUMER_OFFSET have it."""
        return {
            "dataVersion": self.data_version.to_json(),
            _TABLE: {key: dict(queues) for key, queues in self._table.items()},
        }

    def _entries(self) -> Iterator[Change]:
        yield ("dataVersion",), self._next_version()
        for name, value in self._unknown.items():
            yield (name,), value
        if not self._table:
            yield (_TABLE,), {}
        for key in list(self._table):
            queues = self._table.get(key)
            if queues is not None:
                yield (_TABLE, key), dict(queues)

    def _value_of(self, path: Path) -> Any:
        if len(path) == 1:
            return self._next_version()
        queues = self._table.get(path[1])
        return (
            {str(queue_id): at for queue_id, at in queues.items()} if queues is not None else None
        )

    def _next_version(self) -> dict[str, int]:
        """Every save is a new version."""
        self.data_version.next(self._clock.now_ms())
        return self.data_version.to_json()
