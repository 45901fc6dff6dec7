"""Metrics in Prometheus' format, named as RocketMQ names its own where it has them.

Everything is read from plain counters at each scrape, so that the hot path pays nothing for it.
What belongs to the event loop is read there; what may touch the disk is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import (
    HistogramMetricFamily,
    Metric,
)

from aerobee.broker.base.histogram import buckets
from aerobee.broker.daemon.metric_families import GROUP_TOPIC, Families, text_of
from aerobee.broker.daemon.service_metrics import First, ServiceMetrics, Waiting
from aerobee.protocol import names
from aerobee.protocol.wire.codes import RequestCode

if TYPE_CHECKING:
    from aerobee.broker.base.histogram import Histogram
    from aerobee.broker.handlers.context import Broker
    from aerobee.broker.net.requests import Dispatcher
    from aerobee.broker.net.server import Server

_TOPIC = ("topic", "is_system")
# Sizes and times are counted by powers of two, of bytes and of microseconds.
_SIZE_BITS = range(8, 24, 2)
_TIME_BITS = range(6, 24, 2)  # from 64 microseconds to 4 seconds


class Collector(Families):
    """Makes all metrics of one broker."""

    def __init__(self, broker: Broker, server: Server, dispatcher: Dispatcher) -> None:
        super().__init__(broker)
        self._server = server
        self._dispatcher = dispatcher
        self._more = ServiceMetrics(broker)

    def quick(self) -> list[Metric]:
        """What needs no disk; to be called in the event loop."""
        return [
            *self._traffic(),
            *self._clients(),
            *self._store(),
            *self._services(),
            *self._replication(),
            *self._more.quick(),
        ]

    def waiting(self) -> tuple[list[First], Waiting]:
        """The first message that each group has not fetched, and whatever else `slow` needs from
        the event loop's tables."""
        store = self._broker.store
        behind = [
            (group, topic, store.store_time_later(topic, queue_id, queue_offset))
            for group, topic, queue_id, queue_offset, end in self.progress()
            if queue_offset < end
        ]
        return behind, self._more.waiting()

    def slow(self, waiting: tuple[list[First], Waiting]) -> Iterator[Metric]:
        """What reads the log; not to be called in the event loop."""
        behind, more = waiting
        yield self._latencies(behind)
        yield from self._more.slow(more)

    def _latencies(self, waiting: Iterable[First]) -> Metric:
        """How old the oldest message is that waits for each group."""
        now_ms = self._broker.clock.now_ms()
        oldest: dict[tuple[str, str], int] = {}
        for group, topic, store_time in waiting:
            stored_ms = store_time()
            if stored_ms > 0:
                age_ms = max(0, now_ms - stored_ms)
                key = (group, topic)
                oldest[key] = max(age_ms, oldest.get(key, 0))
        family = self._gauge(
            "rocketmq_consumer_lag_latency",
            "Age of the oldest message that waits for the group, in milliseconds",
            GROUP_TOPIC,
        )
        for (group, topic), age_ms in oldest.items():
            self._add(family, self._group_topic(group, topic), age_ms)
        return family

    # --- parts

    def _traffic(self) -> Iterator[Metric]:
        stats = self._broker.stats
        counts = self._counter("rocketmq_messages_in_total", "Messages stored", _TOPIC)
        sizes = self._counter("rocketmq_throughput_in_total", "Bytes stored", _TOPIC)
        for topic, counter in stats.put_counters():
            labels = (topic, self._system_topic(topic))
            self._add(counts, labels, counter.nums)
            self._add(sizes, labels, counter.size)
        yield counts
        yield sizes
        counts = self._counter("rocketmq_messages_out_total", "Messages pulled", GROUP_TOPIC)
        sizes = self._counter("rocketmq_throughput_out_total", "Bytes pulled", GROUP_TOPIC)
        for topic, group, counter in stats.get_counters():
            of_group = self._group_topic(group, topic)
            self._add(counts, of_group, counter.nums)
            self._add(sizes, of_group, counter.size)
        yield counts
        yield sizes
        yield self._size_histogram(stats.size_counts, stats.broker_put.size)
        yield self._rpc_latency()
        times = self._broker.store.stats
        yield self._seconds("aerobee_store_put_seconds", "Time of a put", times.put_times)
        yield self._seconds("aerobee_store_flush_seconds", "Time of a flush", times.flush_times)

    def _size_histogram(self, counts: list[int], total: int) -> Metric:
        bounds = {bits: str(float((1 << bits) - 1)) for bits in _SIZE_BITS}
        family = HistogramMetricFamily(
            "rocketmq_message_size", "Size of stored messages, in bytes", labels=self._names
        )
        family.add_metric(self._values, buckets=buckets(counts, bounds), sum_value=total)
        return family

    def _rpc_latency(self) -> Metric:
        family = HistogramMetricFamily(
            "rocketmq_rpc_latency",
            "Time from a request to its answer, in milliseconds; of a held pull, until it is held",
            labels=(*self._names, "protocol_type", "request_code"),
        )
        for code, histogram in self._dispatcher.latencies.items():
            found = histogram.buckets(_TIME_BITS, 1000)
            if found[-1][1]:
                labels = (*self._values, "remoting", _code_name(code))
                family.add_metric(labels, buckets=found, sum_value=histogram.total * 1000)
        return family

    def _seconds(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=self._names)
        found = histogram.buckets(_TIME_BITS, 1)
        family.add_metric(self._values, buckets=found, sum_value=histogram.total)
        return family

    def _clients(self) -> Iterator[Metric]:
        clients = self._broker.clients
        producers = self._gauge(
            "rocketmq_producer_connections",
            "Producers online",
            ("language", "version", "protocol_type"),
        )
        for labels, count in _count_clients(
            member for members in clients.producer_groups().values() for member in members
        ).items():
            self._add(producers, (*labels, "remoting"), count)
        yield producers
        consumers = self._gauge(
            "rocketmq_consumer_connections",
            "Consumers online",
            ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
        )
        lag = self._gauge(
            "rocketmq_consumer_lag_messages", "Messages that wait for the group", GROUP_TOPIC
        )
        for group in clients.consumer_groups():
            for labels, count in _count_clients(group.members.values()).items():
                mode = "push" if group.consume_type == "CONSUME_PASSIVELY" else "pull"
                system = text_of(names.is_system_group(group.name))
                values = (group.name, *labels, mode, "remoting", system)
                self._add(consumers, values, count)
        yield consumers
        behind: dict[tuple[str, str], int] = {}
        for name, topic, _queue_id, queue_offset, end in self.progress():
            behind[name, topic] = behind.get((name, topic), 0) + max(0, end - queue_offset)
        for (name, topic), count in behind.items():
            self._add(lag, self._group_topic(name, topic), count)
        yield lag

    def _store(self) -> Iterator[Metric]:
        store, clock = self._broker.store, self._broker.clock
        local = ("storage_type", "storage_medium")
        values = ("local", "disk")
        first, last = store.min_physical_offset, store.max_physical_offset
        rows = (
            ("rocketmq_storage_size", "Bytes of messages in the log", last - first),
            (
                "rocketmq_storage_flush_behind_bytes",
                "Bytes of the log that are not on disk yet",
                last - store.flushed_offset,
            ),
            (
                "rocketmq_storage_dispatch_behind_bytes",
                "Bytes of the log that consumers do not see yet",
                last - store.dispatched_offset,
            ),
        )
        for name, text, value in rows:
            family = self._gauge(name, text, local)
            self._add(family, values, value)
            yield family
        yield self._single("aerobee_mapped_files", "Files mapped into memory", store.counters.files)
        yield self._single("aerobee_mapped_bytes", "Bytes mapped into memory", store.counters.bytes)
        used = self._gauge("aerobee_disk_used_ratio", "Used share of the disk", ("path",))
        for path, space in store.disk_usage().items():
            self._add(used, (path,), space.used_ratio)
        yield used
        stats = store.stats
        yield self._total("aerobee_store_puts_total", "Messages put into the log", stats.puts)
        yield self._total(
            "aerobee_store_put_failures_total", "Messages that were refused", stats.put_failures
        )
        yield self._total("aerobee_store_flushes_total", "Flushes of the log", stats.flushes)
        yield self._single(
            "aerobee_store_flush_max_seconds", "The longest flush", stats.flush_ms_max / 1000
        )
        yield self._single(
            "aerobee_store_put_lock_max_seconds",
            "The longest time that a put held the lock",
            stats.put_lock_ms_max / 1000,
        )
        yield self._single(
            "aerobee_uptime_seconds",
            "Time since the start",
            (clock.now_ms() - self._broker.stats.started_ms) / 1000,
        )

    def _services(self) -> Iterator[Metric]:
        broker = self._broker
        yield self._single(
            "rocketmq_broker_permission",
            "4 read + 2 write",
            broker.settings.broker_permission,
        )
        yield self._single("rocketmq_topic_number", "Topics", len(broker.topics.all()))
        yield self._single(
            "rocketmq_consumer_group_number", "Consumer groups", len(broker.groups.all())
        )
        watermark = self._gauge(
            "rocketmq_processor_watermark", "Requests that wait", ("processor",)
        )
        self._add(watermark, ("long_polling",), len(broker.long_polling))
        yield watermark
        yield self._single("aerobee_connections", "Open connections", len(self._server.connections))
        yield self._single("rocketmq_timing_messages", "Timers pending", broker.timers.pending)
        unread = "Timers that are due and whose messages the disk cannot read"
        yield self._single("aerobee_timers_unread", unread, broker.timers.unread.count)
        yield self._single(
            "rocketmq_half_messages", "Transactions that are open", broker.transactions.open_count
        )
        waiting = self._gauge("aerobee_delayed_messages", "Messages that wait", ("level",))
        for level, _delay in enumerate(broker.settings.delay_levels_ms, start=1):
            at, end = broker.schedule.progress(level)
            self._add(waiting, (str(level),), max(0, end - at))
        yield waiting
        denied = self._counter("aerobee_requests_denied", "Requests denied", ("reason",))
        for reason, count in broker.guard.audit.denials.items():
            self._add(denied, (reason,), count)
        yield denied
        keepers = broker.store.clean.keepers
        for name, text, counts in (
            ("aerobee_pending_carried", "Pending messages stored again", keepers.carried),
            ("aerobee_pending_lost", "Pending messages removed with their file", keepers.lost),
        ):
            family = self._counter(name, text, ("kind",))
            for kind, count in counts.items():
                self._add(family, (kind,), count)
            yield family

    def _failover(self, status: dict[str, Any]) -> Iterator[Metric]:
        """With an arbiter: whether it answers, and which replicas could take over."""
        away_s = status["awaySeconds"] or 0
        for name, text, value in (
            ("aerobee_failover_leads", "1: this broker is the master by the record", "leads"),
            ("aerobee_failover_epoch", "The epoch of the record", "epoch"),
        ):
            yield self._single(name, text, status[value])
        yield self._single(
            "aerobee_arbiter_unreachable_seconds",
            "Time since etcd or the controller last answered; 0 while it does",
            away_s,
        )
        members = len(status["inSync"])
        yield self._single("aerobee_failover_in_sync", "Replicas in sync by the record", members)
        elections = status["electionsWon"]
        yield self._single("aerobee_failover_elections_won", "Elections won by us", elections)

    def _replication(self) -> Iterator[Metric]:
        """A slave says whether it follows; a master, how far behind each of its slaves is."""
        replication = self._broker.replication
        follows = bool(replication.master().get("masterAddr"))
        yield self._single("aerobee_follows_master", "1: a master's log is followed", follows)
        behind = self._gauge(
            "aerobee_slave_behind_bytes", "Log that a slave has not acknowledged", ("slave",)
        )
        slaves = replication.slaves()
        for slave in slaves:
            self._add(behind, (slave["addr"],), slave["diff"])
        yield behind
        lag = self._gauge(
            "aerobee_slave_behind_seconds",
            "Age of the first message that a slave lacks",
            ("slave",),
        )
        for slave in slaves:
            if slave["behindMs"] is not None:
                self._add(lag, (slave["addr"],), slave["behindMs"] / 1000)
        yield lag
        epochs = replication.epochs()
        newest = epochs[-1][0][0] if epochs else 0
        yield self._single("aerobee_replica_epoch", "The newest epoch of the log", newest)
        if failover := replication.failover():
            yield from self._failover(failover)
        in_sync = sum(slave["inSync"] for slave in slaves)
        yield self._single("aerobee_slaves_in_sync", "Slaves that are near enough", in_sync)


def _count_clients(members: Iterable[Any]) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for member in members:
        labels = (member.language.lower(), str(member.version))
        counts[labels] = counts.get(labels, 0) + 1
    return counts


def _code_name(code: int) -> str:
    try:
        return RequestCode(code).name.lower()
    except ValueError:
        return str(code)
