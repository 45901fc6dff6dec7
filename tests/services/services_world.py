"""The message services wired as the broker wires them, on a real store and a clock set by hand."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from aerobee.broker.base.clock import Clock
from aerobee.broker.daemon.keepers import add_keepers
from aerobee.broker.daemon.store_settings import store_settings
from aerobee.broker.services.clients.clients import Clients
from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.groups.table import Groups
from aerobee.broker.services.offsets import Offsets
from aerobee.broker.services.order_locks import OrderLocks
from aerobee.broker.services.put_hooks import PutHooks
from aerobee.broker.services.retry import Retry
from aerobee.broker.services.stats import Stats
from aerobee.broker.services.timers.firing import Timers
from aerobee.broker.services.topics.table import Topics
from aerobee.broker.services.transactions.checks import TransactionChecks
from aerobee.broker.services.transactions.service import Transactions
from aerobee.broker.settings import Settings
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.results import PutResult
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.ids import encode_host
from aerobee.protocol.files.record import Message, StoredMessage, decode_record

START_MS = 1_800_000_000_000
HOST = encode_host("127.0.0.1", 10911)


class HandClock(Clock):
    """A clock that only a test advances."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.at_ms = now_ms
        self.set_by_ms = 0  # how far the time of day was set

    def now_ms(self) -> int:
        return self.at_ms + self.set_by_ms

    def monotonic(self) -> float:
        return self.at_ms / 1000


class SetClock(Clock):
    """The system's clock, but the time of day can be set: as by NTP, or by a machine that slept."""

    def __init__(self) -> None:
        self.set_by_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_by_ms


class World:
    """Open, work with, abandon as a kill would, open again."""

    def __init__(
        self,
        root: Path,
        clock: Clock | None = None,
        *,
        log_file_size: int = 8 << 20,
        disk: Disk | None = None,
        **settings: Any,
    ) -> None:
        self.root = root
        self._log_file_size = log_file_size
        self._disk = disk  # if given, the full-disk guard is on
        self.clock = clock or HandClock()
        self.settings = Settings(store_path_root_dir=str(root), broker_name="broker-a", **settings)
        self.open()

    def open(self) -> None:
        config = str(self.root / "config")
        wanted = replace(
            store_settings(self.settings),
            mapped_file_size_commit_log=self._log_file_size,
            mapped_file_size_consume_queue=20 * 20_000,
            max_hash_slot_num=1000,
            max_index_num=4000,
            disk_guard_enable=self._disk is not None,
        )
        self.store = MessageStore(wanted, clock=self.clock, ahead=False, disk=self._disk)
        self.store.load()
        settings, clock = self.settings, self.clock
        self.topics = Topics(os.path.join(config, "topics.json"), settings, clock)
        self.groups = Groups(os.path.join(config, "subscriptionGroup.json"), settings, clock)
        self.offsets = Offsets(os.path.join(config, "consumerOffset.json"), clock)
        for service in (self.topics, self.groups, self.offsets):
            service.load()
        self.clients = Clients(settings, self.groups, clock)
        self.hooks = PutHooks(settings, clock)
        self.locks = OrderLocks(clock)
        self.retry = Retry(self.store, self.topics, self.groups, self.hooks, Stats(clock))
        self.schedule = Schedule(self.store, settings, clock, config)
        self.timers = Timers(self.store, settings, clock, str(self.root))
        self.transactions = Transactions(self.store, self.topics, self.offsets, self.hooks)
        self.checks = TransactionChecks(self.transactions, self.clients, settings, clock)
        add_keepers(self.store, settings, clock, self.schedule, self.timers, self.transactions)
        self.dispatch()
        self.schedule.load()
        self.timers.load()
        self.transactions.load()

    # --- ends of a broker's life

    def kill(self) -> None:
        """As SIGKILL: no clients are notified; the files stay as they are."""
        self.store.abandon()
        self.timers.close()

    def reopen_after_kill(self) -> None:
        self.kill()
        self.open()

    def stop(self) -> None:
        """A clean stop."""
        self.transactions.commit_progress()
        self.offsets.file.save()
        self.timers.end()
        self.store.close()
        self.schedule.save()
        self.timers.save()

    def close_quietly(self) -> None:
        self.kill()

    # --- moving

    def dispatch(self) -> None:
        while self.store.reput.step():
            pass

    def advance(self, seconds: float) -> None:
        assert isinstance(self.clock, HandClock)
        self.clock.at_ms += round(seconds * 1000)

    def send(
        self, topic: str, body: bytes = b"body", *, queue_id: int = 0, **properties: str
    ) -> PutResult:
        """A client's send; keyword arguments are properties."""
        message = self.message(topic, body, queue_id=queue_id, **properties)
        result = self.store.put([self.hooks.apply(message)])[0]
        assert result.ok, result
        self.dispatch()
        return result

    def message(
        self, topic: str, body: bytes = b"body", *, queue_id: int = 0, **properties: str
    ) -> Message:
        return Message(
            topic,
            queue_id,
            body,
            props.encode(properties),
            born_timestamp=self.clock.now_ms(),
            born_host=HOST,
            store_host=HOST,
        )

    def run_schedule(self) -> int | None:
        due_ms = self.schedule.step(self.clock.now_ms())
        self.dispatch()
        return due_ms

    def run_timers(self) -> None:
        while self.timers.step(self.clock.now_ms()) == self.clock.now_ms():
            self.dispatch()
        self.dispatch()

    def damage(self, physical_offset: int, at: int, data: bytes) -> None:
        """Disk corruption: other bytes in a stored record."""
        with (self.root / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(physical_offset + at)
            file.write(data)

    # --- looking

    def read(self, topic: str, queue_id: int = 0, start: int = 0) -> list[StoredMessage]:
        """All messages of a queue."""
        messages = []
        for at in range(start, self.store.max_offset(topic, queue_id)):
            entry = self.store.queue_entry(topic, queue_id, at)
            assert entry is not None
            record = self.store.record_at(entry[0], entry[1])
            assert record is not None
            messages.append(decode_record(record, check=True))
        return messages

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [bytes(message.body) for message in self.read(topic, queue_id)]
