"""Metrics of consumers, transactions, timers and retention, under RocketMQ's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client.core import HistogramMetricFamily, Metric

from aerobee.broker.base.histogram import Histogram
from aerobee.broker.daemon.metric_families import GROUP_TOPIC, Families, text_of
from aerobee.protocol import names
from aerobee.protocol.files.record import decode_record
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.names import TIMER_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.handlers.context import Broker

_STORAGE: Final = ("storage_type", "storage_medium")
_LOCAL: Final = ("local", "disk")
_BOUNDS_S: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)  # RocketMQ's
_END_BITS: Final = range(10, 40, 3)  # from a millisecond to six days
_DELAY_BITS: Final = range(20, 42, 2)  # from a second to twelve days


StoreTime = Callable[[], int]  # -1: unknown; reads the disk
First = tuple[str, str, StoreTime]  # group, topic and its first message that waits
Waiting = tuple[list[First], StoreTime | None]


class ServiceMetrics(Families):
    """What RocketMQ 5 exports of its services."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._oldest = -1, 0  # where the log begins, and when the message there was stored

    def quick(self) -> Iterator[Metric]:
        """What needs no disk; to be called in the event loop."""
        yield from self._consumers()
        dead = self._counter(
            "rocketmq_send_to_dlq_messages_total",
            "Messages moved to dead letters",
            ("consumer_group", "topic", "is_system"),
        )
        for topic, group, counter in self._broker.stats.dead_counters():
            system = text_of(names.is_system_group(group))
            self._add(dead, (group, topic, system), counter.nums)
        yield dead
        yield from self._transactions()
        yield from self._timers()
        yield self._stored(
            "rocketmq_storage_message_reserve_time",
            "Age of the oldest message that is kept, in milliseconds",
            self._reserve_ms(),
        )

    def _consumers(self) -> Iterator[Metric]:
        """In flight: fetched and not acknowledged; ready: not fetched yet."""
        flying: dict[tuple[str, str], int] = {}
        ready: dict[tuple[str, str], int] = {}
        for group, topic, queue_id, committed, end in self.progress():
            pulled = min(end, self._broker.offsets.query_pull(group, topic, queue_id))
            key = (group, topic)
            flying[key] = flying.get(key, 0) + max(0, pulled - committed)
            ready[key] = ready.get(key, 0) + max(0, end - max(pulled, committed))
        rows = (
            ("rocketmq_consumer_inflight_messages", "Fetched and not acknowledged", flying),
            ("rocketmq_consumer_ready_messages", "Not fetched yet", ready),
        )
        for name, text, table in rows:
            family = self._gauge(name, text, GROUP_TOPIC)
            for (group, topic), count in table.items():
                self._add(family, self._group_topic(group, topic), count)
            yield family

    def _transactions(self) -> Iterator[Metric]:
        counts = self._broker.transactions.counts
        rows = (
            ("rocketmq_commit_messages_total", "Transactions committed", counts.committed),
            ("rocketmq_rollback_messages_total", "Transactions rolled back", counts.rolled_back),
        )
        for name, text, table in rows:
            yield self._by_topic(name, text, table)
        family = HistogramMetricFamily(
            "rocketmq_finish_message_latency",
            "Time from a half message to its end, in milliseconds",
            labels=(*self._names, "topic"),
        )
        for topic, histogram in counts.times.items():
            found = histogram.buckets(_END_BITS, 1000)
            labels = (*self._values, topic)
            family.add_metric(labels, buckets=found, sum_value=histogram.total * 1000)
        yield family

    def _timers(self) -> Iterator[Metric]:
        timers = self._broker.timers
        rows = (
            ("rocketmq_timer_enqueue_lag", "Timers that are not noted yet", timers.offset_behind),
            ("rocketmq_timer_dequeue_lag", "Timers of the current second", timers.due_messages),
            (
                "rocketmq_timer_dequeue_latency",
                "By how much deliveries are late, in milliseconds",
                timers.read_behind * 1000,
            ),
        )
        for name, text, value in rows:
            yield self._stored(name, text, value)
        counts = timers.counts
        yield self._by_topic("rocketmq_timer_enqueue_total", "Timers set", counts.enqueued)
        yield self._by_topic("rocketmq_timer_dequeue_total", "Timers delivered", counts.dequeued)
        yield self._delays(counts.delays)

    def _delays(self, delays: Histogram) -> Metric:
        family = HistogramMetricFamily(
            "rocketmq_delay_message_latency",
            "For how long timers were set, in seconds",
            labels=self._names,
        )
        found = delays.buckets(_DELAY_BITS, 1)
        family.add_metric(self._values, buckets=found, sum_value=delays.total)
        return family

    def _reserve_ms(self) -> int:
        """Age of the oldest message. Its page may be cold: it is read once for each first file."""
        store = self._broker.store
        first = store.readable_from
        if self._oldest[0] != first or not self._oldest[1]:
            view = store.record_at(first) if store.max_physical_offset > first else None
            try:
                stored_ms = 0 if view is None else decode_record(view).store_timestamp
            except CorruptRecord:
                stored_ms = 0
            self._oldest = first, stored_ms
        return max(0, self._broker.clock.now_ms() - self._oldest[1]) if self._oldest[1] else 0

    # --- what reads the log

    def waiting(self) -> Waiting:
        """The first message that each group has not fetched, and the first timer that is not noted;
        to be called in the event loop."""
        found: list[First] = []
        store = self._broker.store
        for group, topic, queue_id, _committed, end in self.progress():
            pulled = max(0, self._broker.offsets.query_pull(group, topic, queue_id))
            if pulled < end:
                found.append((group, topic, store.store_time_later(topic, queue_id, pulled)))
        timers = self._broker.timers
        if not timers.offset_behind:
            return found, None
        return found, store.store_time_later(TIMER_TOPIC, 0, timers.enqueue_offset)

    def slow(self, waiting: Waiting) -> Iterator[Metric]:
        """Not to be called in the event loop."""
        unfetched, first_timer = waiting
        oldest: dict[tuple[str, str], int] = {}
        for group, topic, store_time in unfetched:
            age_ms = self._age_ms(store_time)
            oldest[group, topic] = max(age_ms, oldest.get((group, topic), 0))
        family = self._gauge(
            "rocketmq_consumer_queueing_latency",
            "Age of the oldest message that the group has not fetched, in milliseconds",
            GROUP_TOPIC,
        )
        for (group, topic), age_ms in oldest.items():
            self._add(family, self._group_topic(group, topic), age_ms)
        yield family
        yield self._snapshot()
        yield self._stored(
            "rocketmq_timer_enqueue_latency",
            "Age of the oldest timer that is not noted yet, in milliseconds",
            0 if first_timer is None else self._age_ms(first_timer),
        )

    def _snapshot(self) -> Metric:
        """How many timers are due until when, of the next day."""
        family = self._gauge(
            "rocketmq_timer_message_snapshot",
            "Timers that are due between the bound before and this one, in seconds from now",
            (*_STORAGE, "timer_bound_s"),
        )
        timers = self._broker.timers
        if timers.pending:
            now_s = self._broker.clock.now_ms() // 1000
            for bound, count in zip(_BOUNDS_S, timers.wheel.counts(now_s, _BOUNDS_S), strict=True):
                self._add(family, (*_LOCAL, str(bound)), count)
        return family

    def _age_ms(self, store_time: StoreTime) -> int:
        stored_ms = store_time()
        return max(0, self._broker.clock.now_ms() - stored_ms) if stored_ms > 0 else 0

    # --- helpers

    def _by_topic(self, name: str, text: str, table: Mapping[str, int]) -> Metric:
        family = self._counter(name, text, ("topic",))
        for topic, count in list(table.items()):
            self._add(family, (topic,), count)
        return family

    def _stored(self, name: str, text: str, value: float) -> Metric:
        family = self._gauge(name, text, _STORAGE)
        self._add(family, _LOCAL, value)
        return family
