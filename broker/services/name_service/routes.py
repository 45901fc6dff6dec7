"""The name service's table: which broker has which topics, and where it can be dialled.

Brokers that registered with us (ours or Apache's) are kept until they are silent for too long or
their connection closes. The broker in the same process is not registered: its topics are read for
each request, and its address depends on the client that asks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.name_service.route_data import (
    MASTER_ID,
    BrokerData,
    Local,
    NewerMaster,
    QueueData,
    Registration,
    permission_mask,
    queue_data,
)
from aerobee.broker.services.topics.config import WRITE

log = structlog.get_logger("aerobee.names")

EPOCHS_MAX: Final = 1024  # names of which it is remembered
_SLICE: Final = 64


@dataclass(slots=True)
class _Live:
    """A registered broker with a recent heartbeat."""

    registration: Registration
    heard_at: float
    connection: object  # its closing ends the registration


class Routes:
    """All routes. `local_address` is our own, as the asking client can reach it."""

    def __init__(self, clock: Clock, local: Local | None = None) -> None:
        self._clock = clock
        self.local = local
        self._brokers: dict[str, BrokerData] = {}
        self._queues: dict[str, dict[str, QueueData]] = {}  # topic -> broker name
        self._live: dict[tuple[str, str], _Live] = {}  # (cluster, address)
        # The greatest epoch of each broker name, and the address of its master, even if it is gone.
        self._epochs: dict[str, tuple[int, str]] = {}
        self._write_wiped = False  # of the local broker

    # --- lookups

    def queues(self, topic: str) -> list[QueueData]:
        """Where the topic is; empty when no broker has it."""
        found = dict(self._queues.get(topic, {}))
        local = self._local_queues(topic)
        if local is not None and not self.local_is_superseded:
            found[local.broker_name] = local
        return list(found.values())

    def broker(self, name: str, local_address: str) -> BrokerData | None:
        known = self._brokers.get(name)
        if self.local is None or name != self.local.name or self.local_is_superseded:
            return known
        addresses = dict(known.addresses) if known else {}
        addresses[self.local.broker_id] = local_address
        return BrokerData(self.local.cluster, name, addresses)

    def brokers(self, local_address: str) -> Iterator[BrokerData]:
        names = list(self._brokers)
        if self.local is not None and self.local.name not in self._brokers:
            names.append(self.local.name)
        for name in names:
            broker = self.broker(name, local_address)
            if broker is not None:
                yield broker

    def topics(self, matches: Callable[[QueueData], bool] = lambda _: True) -> list[str]:
        """The names of all topics that have a queue for which `matches` holds."""
        return sorted(
            name for name in self._topic_names() if any(matches(data) for data in self.queues(name))
        )

    def filter_servers(self) -> dict[str, list[str]]:
        """By the address of the broker that they belong to."""
        return {
            live.registration.address: live.registration.filter_servers
            for live in self._live.values()
            if live.registration.filter_servers
        }

    def data_version(self, cluster: str, address: str) -> dict[str, int] | None:
        live = self._live.get((cluster, address))
        return live.registration.data_version if live else None

    def master_of(self, name: str) -> Registration | None:
        """The live master of a broker name."""
        for live in self._live.values():
            known = live.registration
            if known.name == name and known.broker_id == MASTER_ID:
                return known
        return None

    def epoch_of(self, name: str) -> int:
        """The greatest epoch in which a broker of this name was a master, that we know of."""
        local = self.local.epoch() if self.local is not None and self.local.name == name else 0
        return max(local, self._epoch_seen(name)[0])

    @property
    def local_is_superseded(self) -> bool:
        """Whether a master of a later epoch has registered, so that the broker of this process
        accepts no more messages. It is not in routes any more, even after that one has gone."""
        local = self.local
        return (
            local is not None
            and local.broker_id == MASTER_ID
            and local.epoch() < self._epoch_seen(local.name)[0]
        )

    def _epoch_seen(self, name: str) -> tuple[int, str]:
        """The greatest epoch of a registered master, and its address."""
        return self._epochs.get(name, (0, ""))

    def _topic_names(self) -> set[str]:
        local = set(self.local.topics()) if self.local is not None else set()
        return local.union(self._queues)

    def _local_queues(self, topic: str) -> QueueData | None:
        if self.local is None:
            return None
        config = self.local.topics().get(topic)
        if config is None:
            return None
        data = queue_data(self.local.name, config)
        return replace(data, perm=data.perm & permission_mask(self._local_permission()))

    def _local_permission(self) -> int:
        assert self.local is not None
        permission = self.local.permission()
        return permission & ~WRITE if self._write_wiped else permission

    # --- registrations

    def register(self, new: Registration, connection: object) -> None:
        """Apply a registration; ValueError when it is refused."""
        for _ in self.register_slices(new, connection):
            pass

    def register_slices(self, new: Registration, connection: object) -> Iterator[None]:
        """Likewise, with some topics between one yield and the next. It ends early when the broker
        goes meanwhile."""
        key = (new.cluster, new.address)
        before = self._live.get(key)
        if before is None and len(new.topics) == 1:
            raise ValueError(
                "register broker failed: the first registration must carry all topics, not one"
            )
        if new.broker_id == MASTER_ID:
            self._refuse_smaller_epoch(new)
        local = self.local
        is_namesake = local is not None and (local.name, local.broker_id) == (
            new.name,
            new.broker_id,
        )
        if local is not None and is_namesake and not local.epoch() < new.epoch:
            raise ValueError(
                f"register broker failed: the broker of this process is called {new.name} too, "
                f"and has the id {new.broker_id}; give each broker a brokerName of its own, or "
                f"each slave a brokerId of its own"
            )
        if new.broker_id == MASTER_ID:
            self._note_epoch(new)
        if self._drop_earlier_entry(new):
            before = None
        self._place_broker(new)
        has_changed = new.broker_id == MASTER_ID and (
            before is None or before.registration.data_version != new.data_version
        )
        if not has_changed and before is not None:
            new = replace(new, topics=before.registration.topics)
        live = self._live[key] = _Live(new, self._clock.monotonic(), connection)
        if before is None:
            log.info("broker registered", broker=new.name, id=new.broker_id, address=new.address)
        if has_changed:
            for count, (topic, config) in enumerate(new.topics.items()):
                if count % _SLICE == 0:
                    yield
                    if self._live.get(key) is not live:
                        return
                self._queues.setdefault(topic, {})[new.name] = queue_data(new.name, config)

    def _refuse_smaller_epoch(self, new: Registration) -> None:
        """Of two masters of a name, the one of the later epoch wins; NewerMaster for the other.

        Even while the later one is away, because the other lacks what it has acknowledged. A
        master without an epoch (4.9) is refused only while the other one is registered."""
        known = self.master_of(new.name)
        if known is not None and known.address != new.address and known.epoch > new.epoch:
            self._live.pop((new.cluster, new.address), None)
            raise NewerMaster(new.name, known.address, new.epoch, known.epoch)
        last_epoch, last_address = self._epoch_seen(new.name)
        if 0 < new.epoch < last_epoch and new.address != last_address:
            raise NewerMaster(new.name, None, new.epoch, last_epoch)
        local = self.local
        if local is None or (local.name, local.broker_id) != (new.name, MASTER_ID):
            return
        if local.epoch() > new.epoch:
            raise NewerMaster(new.name, "the broker of this process", new.epoch, local.epoch())

    def _note_epoch(self, new: Registration) -> None:
        """A master is accepted. If this supersedes the broker in this process, it is notified."""
        if new.epoch > self._epoch_seen(new.name)[0]:
            self._epochs[new.name] = new.epoch, new.address
            if len(self._epochs) > EPOCHS_MAX:
                del self._epochs[next(iter(self._epochs))]
        if self.local_is_superseded and self.local is not None and self.local.name == new.name:
            self.local.superseded(new.epoch, new.address)

    def _drop_earlier_entry(self, new: Registration) -> bool:
        """Drop the broker's entry from before it was reconfigured; True if it was at this key.

        An entry that is no longer refreshed would remove the new one's routes when it expires."""
        at_key = False
        for key, live in list(self._live.items()):
            known = live.registration
            renamed = (known.name, known.broker_id) != (new.name, new.broker_id)
            if known.address == new.address and renamed:
                self.unregister(*key, known.name, known.broker_id)
                at_key |= key == (new.cluster, new.address)
            elif not renamed and key != (new.cluster, new.address):
                log.info("broker moved", broker=new.name, id=new.broker_id, was=key)
                del self._live[key]
        return at_key

    def _place_broker(self, new: Registration) -> None:
        broker = self._brokers.setdefault(new.name, BrokerData(new.cluster, new.name))
        broker.cluster = new.cluster
        for broker_id, address in list(broker.addresses.items()):
            if address == new.address and broker_id != new.broker_id:
                del broker.addresses[broker_id]  # a replica that became the master
        broker.addresses[new.broker_id] = new.address

    def forget_topics_not_in(self, name: str, topics: set[str]) -> None:
        """After a complete registration: the broker has only the topics that it named."""
        for topic in [t for t, queues in self._queues.items() if name in queues]:
            if topic not in topics:
                self._remove_queues(topic, name)

    def note_heartbeat(
        self,
        cluster: str,
        address: str,
        connection: object | None,
        timeout_ms: int | None = None,
    ) -> bool:
        """Record a heartbeat by this connection; False when the broker is not registered."""
        live = self._live.get((cluster, address))
        if live is None:
            return False
        live.heard_at = self._clock.monotonic()
        if connection is not None:
            live.connection = connection
        if timeout_ms:
            live.registration.timeout_ms = timeout_ms
        return True

    def unregister(self, cluster: str, address: str, name: str, broker_id: int) -> None:
        broker = self._brokers.get(name)
        if broker is None or broker.addresses.get(broker_id) != address:
            return
        self._live.pop((cluster, address), None)
        del broker.addresses[broker_id]
        if not broker.addresses:  # else its slaves can be read from
            for topic in [t for t, queues in self._queues.items() if name in queues]:
                self._remove_queues(topic, name)
        if not broker.addresses:
            del self._brokers[name]

    def connection_closed(self, connection: object) -> None:
        for live in [live for live in self._live.values() if live.connection is connection]:
            self._drop(live, "its connection closed")

    def drop_silent(self) -> None:
        """Remove the brokers without a heartbeat in time."""
        now = self._clock.monotonic()
        for live in list(self._live.values()):
            if (now - live.heard_at) * 1000 > live.registration.timeout_ms:
                self._drop(live, f"silent for {now - live.heard_at:.0f} s")

    def _drop(self, live: _Live, reason: str) -> None:
        known = live.registration
        log.warning("broker dropped", broker=known.name, address=known.address, reason=reason)
        self.unregister(known.cluster, known.address, known.name, known.broker_id)

    # --- changes by an administrator

    def set_write_permission(self, name: str, allowed: bool) -> int:
        """Show or hide a broker to producers; returns how many topics that concerns."""
        count = 0
        for queues in self._queues.values():
            data = queues.get(name)
            if data is not None:
                perm = data.perm | WRITE if allowed else data.perm & ~WRITE
                queues[name] = replace(data, perm=perm)
                count += 1
        if self.local is not None and name == self.local.name:
            self._write_wiped = not allowed
            count = len(self.local.topics())
        log.info("write permission changed", broker=name, allowed=allowed, topics=count)
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        for name in list(self._queues.get(topic, {})):
            broker = self._brokers.get(name)
            if cluster is None or (broker is not None and broker.cluster == cluster):
                self._remove_queues(topic, name)

    def put_queues(self, topic: str, queues: list[QueueData]) -> None:
        """A topic's queues on brokers that are registered."""
        for data in queues:
            if data.broker_name in self._brokers:
                self._queues.setdefault(topic, {})[data.broker_name] = data

    def _remove_queues(self, topic: str, name: str) -> None:
        queues = self._queues[topic]
        queues.pop(name, None)
        if not queues:
            del self._queues[topic]
