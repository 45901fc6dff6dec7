"""The consume queues of a store by (topic, queue id)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from aerobee.broker.base.reports import Reports
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.mapped_file import MappingCounters
from aerobee.broker.store.queues.consume_queue import ALLOCATION_CHUNK, ConsumeQueue
from aerobee.broker.store.queues.consume_queue_ext import ConsumeQueueExt
from aerobee.broker.store.queues.first_files import FirstFiles
from aerobee.broker.store.queues.listeners import ArrivalListeners
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.names import SCHEDULE_TOPIC


def is_safe_topic(topic: str) -> bool:
    """Whether the name is safe as a folder in consumequeue/."""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


class QueueTable:
    __slots__ = (
        "_counters",
        "_disk",
        "_has_ext",
        "_listeners",
        "_of_records",
        "_settings",
        "_unsynced",
        "first_files",
        "listened",
        "table",
    )

    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        counters: MappingCounters,
        unsynced: set[str],
        listeners: ArrivalListeners,
        reports: Reports,
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._counters = counters
        self._unsynced = unsynced
        self._has_ext = False
        self._listeners = listeners
        size = settings.mapped_file_size_consume_queue
        self.first_files = FirstFiles(disk, reports, size, ALLOCATION_CHUNK)
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        self.listened: set[tuple[str, int]] = set()  # queues with listeners
        self._of_records: dict[tuple[bytes, int], ConsumeQueue] = {}  # cache for records of the log

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.table.values()))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.table.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self.table.get((topic, queue_id))
        if queue is None:
            if not is_safe_topic(topic):
                raise StoreError(f"topic {topic!r} cannot be a folder's name: refused")
            ext = self._ext_of(topic, queue_id)
            queue = ConsumeQueue(
                topic,
                queue_id,
                self._disk,
                self._settings.layout.queue_folder(topic, queue_id),
                self._settings.mapped_file_size_consume_queue,
                self._counters,
                self._unsynced,
                self.first_files,
                topic == SCHEDULE_TOPIC,
                ext,
                self._settings.enable_consume_queue_ext,
                self._listeners.want(topic, queue_id),
            )
            self.table[topic, queue_id] = queue
            self.first_files.prepare(queue.files.folder)
        return queue

    def of_record(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        """The queue of a record in the log; None when its topic is damaged."""
        queue = self._of_records.get((topic, queue_id))
        if queue is None:
            try:
                name = topic.decode()
            except UnicodeDecodeError:
                return None
            if not is_safe_topic(name):
                return None
            queue = self._of_records[topic, queue_id] = self.get_or_create(name, queue_id)
        return queue

    def _ext_of(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        """The queue's units, if they are enabled or exist from earlier."""
        settings = self._settings
        folder = settings.layout.queue_ext_folder(topic, queue_id)
        if not settings.enable_consume_queue_ext and not (
            self._has_ext and self._disk.exists(folder)
        ):
            return None
        return ConsumeQueueExt(
            self._disk,
            folder,
            settings.mapped_file_size_consume_queue_ext,
            self._counters,
            self._unsynced,
        )

    def listening_changed(self, topic: str, queue_id: int) -> None:
        """Update whether this queue has listeners."""
        queue = self.table.get((topic, queue_id))
        if queue is not None:
            queue.listened = self._listeners.want(topic, queue_id)
            note = self.listened.add if queue.listened else self.listened.discard
            note((topic, queue_id))

    def load(self) -> None:
        """Open the queues in the directory."""
        self._has_ext = self._disk.exists(self._settings.layout.consumequeue_ext)
        root = self._settings.layout.consumequeue
        for topic in self._disk.listdir(root):
            folder = os.path.join(root, topic)
            for name in self._disk.listdir(folder) if self._disk.is_folder(folder) else []:
                if name.isascii() and name.isdigit():
                    queue = self.get_or_create(topic, int(name))
                    queue.files.load()
                    if queue.ext is not None:
                        queue.ext.load()

    def complete_last(self) -> None:
        """Extend files that a kill left short."""
        for queue in self.table.values():
            queue.files.complete_last()
            if queue.ext is not None:
                queue.ext.files.complete_last()

    def remove_topic(self, topic: str) -> int:
        """Delete the topic's queues with files and offsets; how many there were."""
        keys = [key for key in self.table if key[0] == topic]
        for key in keys:
            queue = self.table.pop(key)
            queue.destroy()
            queue.files.retire()
            if queue.ext is not None:
                queue.ext.files.retire()
            self.listened.discard(key)
        self._of_records.clear()
        layout = self._settings.layout
        for root in (layout.consumequeue, layout.consumequeue_ext):
            folder = os.path.join(root, topic)
            if self._disk.exists(folder):
                self._disk.rmtree(folder)
                self._disk.syncdir(root)
        return len(keys)

    def close(self) -> None:
        self.first_files.close()
        for queue in self.table.values():
            queue.close()
