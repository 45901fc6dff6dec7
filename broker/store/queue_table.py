"""The consume queues of a store by (topic, queue id): the table that appends number messages by."""

from __future__ import annotations

import os
from collections.abc import Iterator

from aerobee.broker.store.consume_queue import ConsumeQueue
from aerobee.broker.store.disk import Disk
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.mapped_file import MappingCounters
from aerobee.broker.store.settings import SCHEDULE_TOPIC, StoreSettings


def is_safe_topic(topic: str) -> bool:
    """Whether the name can be a folder of consumequeue/ and nothing else."""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


class QueueTable:
    __slots__ = ("_counters", "_disk", "_settings", "table")

    def __init__(self, settings: StoreSettings, disk: Disk, counters: MappingCounters) -> None:
        self._settings = settings
        self._disk = disk
        self._counters = counters
        self.table: dict[tuple[str, int], ConsumeQueue] = {}

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.table.values()))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.table.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self.table.get((topic, queue_id))
        if queue is None:
            if not is_safe_topic(topic):
                raise StoreError(f"topic {topic!r} cannot be a folder's name: refused")
            queue = ConsumeQueue(
                topic,
                queue_id,
                self._disk,
                self._settings.layout.queue_folder(topic, queue_id),
                self._settings.mapped_file_size_consume_queue,
                self._counters,
                topic == SCHEDULE_TOPIC,
            )
            self.table[topic, queue_id] = queue
        return queue

    def load(self) -> None:
        """Open the queues that the directory has."""
        root = self._settings.layout.consumequeue
        for topic in self._disk.listdir(root):
            folder = os.path.join(root, topic)
            for name in self._disk.listdir(folder) if self._disk.is_folder(folder) else []:
                if name.isascii() and name.isdigit():
                    self.get_or_create(topic, int(name)).files.load()

    def remove_topic(self, topic: str) -> int:
        """Delete the topic's queues, files and numbering; how many there were."""
        keys = [key for key in self.table if key[0] == topic]
        for key in keys:
            self.table.pop(key).destroy()
        folder = os.path.join(self._settings.layout.consumequeue, topic)
        if self._disk.exists(folder):
            self._disk.rmtree(folder)
            self._disk.syncdir(self._settings.layout.consumequeue)
        return len(keys)

    def close(self) -> None:
        for queue in self.table.values():
            queue.close()
