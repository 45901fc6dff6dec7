"""The consume queues of a store by (topic, queue id): the table that appends number messages by."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from aerobee.broker.store.consume_queue import ConsumeQueue
from aerobee.broker.store.consume_queue_ext import ConsumeQueueExt
from aerobee.broker.store.disk import Disk
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.mapped_file import MappingCounters
from aerobee.broker.store.settings import SCHEDULE_TOPIC, StoreSettings


def is_safe_topic(topic: str) -> bool:
    """Whether the name can be a folder of consumequeue/ and nothing else."""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


class QueueTable:
    __slots__ = ("_counters", "_disk", "_has_ext", "_settings", "_unsynced", "_wanted", "table")

    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        counters: MappingCounters,
        unsynced: set[str],
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._counters = counters
        self._unsynced = unsynced
        self._has_ext = False
        self._wanted: list[Callable[[str, int], bool] | None] = []
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
            ext = self._ext_of(topic, queue_id)
            queue = ConsumeQueue(
                topic,
                queue_id,
                self._disk,
                self._settings.layout.queue_folder(topic, queue_id),
                self._settings.mapped_file_size_consume_queue,
                self._counters,
                self._unsynced,
                topic == SCHEDULE_TOPIC,
                ext,
                self._settings.enable_consume_queue_ext,
            )
            self.table[topic, queue_id] = queue
            self.listening_changed(topic, queue_id)
        return queue

    def of_record(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        """The queue of a record in the log; None when damage has made its topic no name."""
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            return None
        return self.get_or_create(name, queue_id) if is_safe_topic(name) else None

    def _ext_of(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        """The queue's units: when they are to be written, or were once."""
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

    # -- who wants to be told of arrivals

    def add_wanted(self, wants: Callable[[str, int], bool] | None) -> None:
        """Somebody listens to the queues for which `wants` is true; None: to all."""
        self._wanted.append(wants)
        for topic, queue_id in self.table:
            self.listening_changed(topic, queue_id)

    def listening_changed(self, topic: str, queue_id: int) -> None:
        """Ask again whether anybody wants this queue's arrivals."""
        queue = self.table.get((topic, queue_id))
        if queue is not None:
            queue.listened = any(wants is None or wants(topic, queue_id) for wants in self._wanted)

    def load(self) -> None:
        """Open the queues that the directory has."""
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
        """Give the files that a kill left short their length."""
        for queue in self.table.values():
            queue.files.complete_last()
            if queue.ext is not None:
                queue.ext.files.complete_last()

    def remove_topic(self, topic: str) -> int:
        """Delete the topic's queues, files and numbering; how many there were."""
        keys = [key for key in self.table if key[0] == topic]
        for key in keys:
            self.table.pop(key).destroy()
        layout = self._settings.layout
        for root in (layout.consumequeue, layout.consumequeue_ext):
            folder = os.path.join(root, topic)
            if self._disk.exists(folder):
                self._disk.rmtree(folder)
                self._disk.syncdir(root)
        return len(keys)

    def close(self) -> None:
        for queue in self.table.values():
            queue.close()
