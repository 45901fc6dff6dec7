"""Families of metrics with the labels that all of a broker's metrics have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from aerobee.broker.base import resource_names
from aerobee.broker.services.clients.heartbeats import BROADCASTING
from aerobee.protocol import names

if TYPE_CHECKING:
    from aerobee.broker.handlers.context import Broker

_COMMON: Final = ("cluster", "node_type", "node_id")
GROUP_TOPIC: Final = ("consumer_group", "topic", "is_retry", "is_system")


class Families:
    """Makes families of metrics, and reads the figures that several of them share."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        settings = broker.settings
        extra = dict(_labels(settings.metrics_label))
        self._names = (*_COMMON, *extra)
        self._values = (
            settings.broker_cluster_name,
            "broker",
            settings.broker_name,
            *extra.values(),
        )

    def progress(self) -> Iterator[tuple[str, str, int, int, int]]:
        """(group, topic, queue, offset, end of the queue); not for groups that keep no progress."""
        broker = self._broker
        for topic, group in list(broker.offsets.pairs()):
            config = broker.topics.get(topic)
            online = broker.clients.consumer_group(group)
            if config is None or (online is not None and online.message_model == BROADCASTING):
                continue
            for queue_id, queue_offset in broker.offsets.queues_of(group, topic).items():
                if queue_id < config.read_queue_nums:
                    end = broker.store.max_offset(topic, queue_id)
                    yield group, topic, queue_id, queue_offset, end

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, text, labels=(*self._names, *labels))

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> CounterMetricFamily:
        return CounterMetricFamily(name, text, labels=(*self._names, *labels))

    def _add(self, family: Any, labels: Iterable[str], value: float) -> None:
        family.add_metric((*self._values, *labels), value)

    def _single(self, name: str, text: str, value: float) -> Metric:
        family = self._gauge(name, text)
        self._add(family, (), value)
        return family

    def _total(self, name: str, text: str, value: float) -> Metric:
        family = self._counter(name, text)
        self._add(family, (), value)
        return family

    def _group_topic(self, group: str, topic: str) -> tuple[str, str, str, str]:
        system = names.is_system_group(group) or self._broker.topics.is_system(topic)
        return group, topic, text_of(resource_names.is_retry_topic(topic)), text_of(system)

    def _system_topic(self, topic: str) -> str:
        return text_of(self._broker.topics.is_system(topic))


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        name, colon, value = part.partition(":")
        if colon:
            yield name.strip(), value.strip()


def text_of(value: bool) -> str:
    return "true" if value else "false"
