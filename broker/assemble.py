"""Puts a broker together: the store, the services on it, and the handlers of every request."""

import os
from collections.abc import Callable

from aerobee.broker.addresses import Addresses
from aerobee.broker.broker import Broker
from aerobee.broker.clock import Clock
from aerobee.broker.dispatch import Dispatcher, Handler
from aerobee.broker.handlers import (
    admin_broker,
    admin_consumers,
    admin_groups,
    admin_offsets,
    admin_relays,
    admin_topics,
    assignment,
    batch_sink,
    client_config,
    heartbeat,
    locks,
    name_service,
    offsets,
    pull,
    queries,
    recall,
    reply,
    retry,
    send,
    transactions,
)
from aerobee.broker.services.batch_ledger import BatchLedger
from aerobee.broker.services.clients import Clients
from aerobee.broker.services.filters import Filters
from aerobee.broker.services.groups import Groups
from aerobee.broker.services.keepers import add_keepers
from aerobee.broker.services.kv_config import KvConfig
from aerobee.broker.services.long_polling import LongPolling
from aerobee.broker.services.name_service import NameService, kv_config_path
from aerobee.broker.services.names import Local, Names
from aerobee.broker.services.offsets import Offsets
from aerobee.broker.services.order_locks import OrderLocks
from aerobee.broker.services.put_hooks import PutHooks
from aerobee.broker.services.retry import Retry
from aerobee.broker.services.schedule import Schedule
from aerobee.broker.services.searches import Searches
from aerobee.broker.services.stats import Stats
from aerobee.broker.services.timers import Timers
from aerobee.broker.services.topics import Topics
from aerobee.broker.services.transactions import Transactions
from aerobee.broker.settings import Settings, store_settings
from aerobee.broker.store.disk import Disk
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.turns import Turns

# Every module of requests; each has its own part of the table.
HANDLERS: tuple[Callable[[Broker], dict[int, Handler]], ...] = (
    send.handlers,
    pull.handlers,
    heartbeat.handlers,
    offsets.handlers,
    queries.handlers,
    retry.handlers,
    recall.handlers,
    reply.handlers,
    transactions.handlers,
    locks.handlers,
    client_config.handlers,
    name_service.handlers,
    batch_sink.handlers,
    admin_topics.handlers,
    admin_groups.handlers,
    admin_consumers.handlers,
    admin_offsets.handlers,
    admin_relays.handlers,
    admin_broker.handlers,
    assignment.handlers,
)


def make_broker(settings: Settings, clock: Clock, disk: Disk | None = None) -> Broker:
    """The container with all services, none of them loaded or running."""
    broker = Broker()
    broker.settings = settings
    broker.clock = clock
    broker.turns = Turns()
    broker.addresses = Addresses(settings, clock)
    broker.store = MessageStore(store_settings(settings), clock=clock, disk=disk)
    folder = broker.store.settings.layout.config
    disk = broker.store.disk

    def path(name: str) -> str:
        return os.path.join(folder, name)

    broker.stats = Stats(clock)
    broker.topics = Topics(path("topics.json"), settings, clock, disk)
    broker.groups = Groups(path("subscriptionGroup.json"), settings, clock, disk)
    broker.offsets = Offsets(path("consumerOffset.json"), clock, disk)
    broker.clients = Clients(settings, broker.groups, clock, broker.turns)
    broker.long_polling = LongPolling(clock)
    broker.searches = Searches()
    broker.filters = Filters(path("consumerFilter.json"), clock, disk)
    broker.put_hooks = PutHooks(settings, clock)
    count_put = broker.stats.add_put
    broker.retry = Retry(broker.store, broker.topics, broker.groups, broker.put_hooks, broker.stats)
    broker.transactions = Transactions(
        broker.store, broker.topics, broker.offsets, broker.put_hooks, count_put
    )
    broker.schedule = Schedule(broker.store, settings, clock, folder, count_put)
    broker.timers = Timers(broker.store, settings, clock, settings.store_path_root_dir, count_put)
    add_keepers(broker.store, settings, clock, broker.schedule, broker.timers, broker.transactions)
    broker.order_locks = OrderLocks(clock)
    broker.batch_ledger = BatchLedger(folder, broker.store, clock, count_put)
    broker.escape = lambda message: broker.store.put([message])[0]
    broker.names = _name_service(broker)
    broker.clients.on_group_change.append(broker.filters.group_changed)
    broker.store.add_arrival_listener(broker.long_polling.arrived, broker.long_polling.waits_at)
    broker.long_polling.on_change = broker.store.listening_changed
    return broker


def _name_service(broker: Broker) -> NameService:
    settings = broker.settings
    local = Local(
        settings.broker_cluster_name,
        settings.broker_name,
        broker.topics.all,
        lambda: settings.broker_permission,
    )
    return NameService(
        settings,
        broker.clock,
        Names(broker.clock, local),
        KvConfig(
            kv_config_path(settings),
            broker.clock,
            lambda: settings.max_kv_config_bytes,
            broker.store.disk,
        ),
        lambda connection: broker.addresses.route_address(connection.peer, connection.local),
    )


def make_dispatcher(broker: Broker) -> Dispatcher:
    """The table of all requests; a code that two modules want is a mistake of ours."""
    table: dict[int, Handler] = {}
    for handlers in HANDLERS:
        part = handlers(broker)
        twice = table.keys() & part.keys()
        assert not twice, f"request codes {sorted(twice)} have two handlers"
        table |= part
    dispatcher = Dispatcher(table)
    broker.latencies = dispatcher.latencies
    return dispatcher
