"""Puts a broker together: the store, the services on it, and the handlers of every request."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from aerobee.broker.auth.book import FILE_NAME, AccessBook
from aerobee.broker.auth.guard import Guard
from aerobee.broker.auth.needs import topics_of_records
from aerobee.broker.base.clock import Clock
from aerobee.broker.base.turns import Turns
from aerobee.broker.daemon.keepers import add_keepers
from aerobee.broker.daemon.store_settings import store_settings
from aerobee.broker.fast.choice import HotFeed
from aerobee.broker.handlers import (
    assignment,
    batch_sink,
    client_config,
    heartbeat,
    locks,
    offsets,
    queries,
    recall,
    replication,
    reply,
    retry,
    send,
    transactions,
)
from aerobee.broker.handlers.admin import broker as admin_broker
from aerobee.broker.handlers.admin import consumers as admin_consumers
from aerobee.broker.handlers.admin import groups as admin_groups
from aerobee.broker.handlers.admin import progress as admin_progress
from aerobee.broker.handlers.admin import relays as admin_relays
from aerobee.broker.handlers.admin import topics as admin_topics
from aerobee.broker.handlers.admin import users as admin_users
from aerobee.broker.handlers.admin.runtime_info import watch_timers
from aerobee.broker.handlers.common import Handlers, bound
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.name_service import requests as name_service
from aerobee.broker.handlers.plain_batch import put_plain_rows
from aerobee.broker.handlers.pull import pull
from aerobee.broker.handlers.pull.pull import Pulls
from aerobee.broker.handlers.send import Sends
from aerobee.broker.handlers.why import explain
from aerobee.broker.net.addresses import Addresses
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.feed import Feed
from aerobee.broker.net.listening import limits_of, quotas_of
from aerobee.broker.net.requests import Dispatcher, Handler
from aerobee.broker.net.server import Server
from aerobee.broker.net.tls import Tls
from aerobee.broker.services.batch_ledger import BatchLedger
from aerobee.broker.services.clients.clients import Clients
from aerobee.broker.services.clients.returning import Returning
from aerobee.broker.services.config_files.classes import config_path
from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.filters.sql_filters import Filters
from aerobee.broker.services.groups.table import Groups
from aerobee.broker.services.long_polling import LongPolling
from aerobee.broker.services.name_service.kv_config import KvConfig
from aerobee.broker.services.name_service.route_data import Local
from aerobee.broker.services.name_service.routes import Routes
from aerobee.broker.services.name_service.service import NameService, kv_config_path
from aerobee.broker.services.offsets import Offsets
from aerobee.broker.services.order_locks import OrderLocks
from aerobee.broker.services.put_hooks import PutHooks
from aerobee.broker.services.retry import Retry
from aerobee.broker.services.searches import Searches
from aerobee.broker.services.stats import Stats
from aerobee.broker.services.timers.firing import Timers
from aerobee.broker.services.topics.table import Topics
from aerobee.broker.services.transactions.service import Transactions
from aerobee.broker.services.why.history import History
from aerobee.broker.settings import Settings
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.message_store import MessageStore

# Every module of requests; each has its own part of the table.
HANDLERS: tuple[Handlers, ...] = (
    heartbeat.HANDLERS,
    offsets.HANDLERS,
    queries.HANDLERS,
    retry.HANDLERS,
    recall.HANDLERS,
    transactions.HANDLERS,
    locks.HANDLERS,
    client_config.HANDLERS,
    admin_topics.HANDLERS,
    admin_groups.HANDLERS,
    admin_consumers.HANDLERS,
    admin_progress.HANDLERS,
    admin_relays.HANDLERS,
    admin_broker.HANDLERS,
    admin_users.HANDLERS,
    assignment.HANDLERS,
    replication.HANDLERS,
    explain.HANDLERS,
)
# Those that accept messages from clients, by the rules of `Sends`.
SEND_HANDLERS: tuple[Callable[[Sends], dict[int, Handler]], ...] = (
    send.handlers,
    reply.handlers,
    batch_sink.handlers,
)


@dataclass(frozen=True)
class Front:
    """What answers requests: the handlers, and the objects that the hot path shares with them."""

    dispatcher: Dispatcher
    sends: Sends
    pulls: Pulls


def make_broker(
    settings: Settings,
    clock: Clock,
    disk: Disk | None = None,
    superseded: Callable[[int, str], None] = lambda _epoch, _address: None,
) -> Broker:
    """A broker with all its services, not loaded and not running. `superseded` is called when a
    later master of our name registers with our name service."""
    store = MessageStore(store_settings(settings), clock=clock, disk=disk)
    folder, disk = store.settings.layout.config, store.disk

    path = partial(config_path, folder)
    turns = Turns()
    addresses = Addresses(settings, clock)
    stats = Stats(clock)
    topics = Topics(path("topics.json"), settings, clock, disk)
    groups = Groups(path("subscriptionGroup.json"), settings, clock, disk)
    history = History(path("whyHistory.json"), clock, disk)
    offsets = Offsets(path("consumerOffset.json"), clock, disk, history)
    history.progress = offsets.progress
    store.clean.on_removed = history.removed
    filters = Filters(
        path("consumerFilter.json"), clock, disk, bytes_max=lambda: settings.max_filter_bytes
    )
    returning = Returning(path("consumerMembers.json"), disk)
    clients = Clients(settings, groups, clock, turns, returning)
    clients.on_group_change += [filters.group_changed, history.group_changed]
    hooks = PutHooks(settings, clock)
    transactions = Transactions(store, topics, offsets, hooks, stats.add_put)
    schedule = Schedule(store, settings, clock, folder, stats.add_put)
    timers = Timers(store, settings, clock, settings.store_path_root_dir, stats.add_put)
    if not settings.is_slave:  # a slave gets what its master stores again
        add_keepers(store, settings, clock, schedule, timers, transactions)
    long_polling = LongPolling(
        clock,
        holds_max=settings.max_held_pulls,
        owner_max=settings.max_held_pulls_per_connection,
    )
    store.add_arrival_listener(long_polling.arrived, long_polling.waits_at)
    long_polling.on_change = store.listening_changed
    return Broker(
        settings=settings,
        clock=clock,
        turns=turns,
        addresses=addresses,
        store=store,
        topics=topics,
        groups=groups,
        offsets=offsets,
        clients=clients,
        long_polling=long_polling,
        searches=Searches(),
        stats=stats,
        filters=filters,
        put_hooks=hooks,
        retry=Retry(store, topics, groups, hooks, stats),
        schedule=schedule,
        timers=timers,
        transactions=transactions,
        order_locks=OrderLocks(clock),
        history=history,
        batch_ledger=BatchLedger(
            folder,
            store,
            clock,
            stats.add_put,
            settings.spark_sink_keep_days,
            partial(put_plain_rows, store),
            broker=settings.broker_name,
        ),
        name_service=_name_service(settings, clock, topics, addresses, disk, superseded),
        guard=Guard(
            settings,
            AccessBook(settings, path(FILE_NAME), clock, disk),
            clock,
            topics_of_records(store),
            lambda offset, queue_offset: (  # a slave ends no transaction
                None if settings.is_slave else transactions.carried_topic(offset, queue_offset)
            ),
        ),
    )


def _name_service(
    settings: Settings,
    clock: Clock,
    topics: Topics,
    addresses: Addresses,
    disk: Disk,
    superseded: Callable[[int, str], None],
) -> NameService:
    local = Local(
        settings.broker_cluster_name,
        settings.broker_name,
        topics.all,
        lambda: settings.broker_permission,
        settings.broker_id,
        lambda: topics.data_version.state_version,
        superseded,
    )
    return NameService(
        settings,
        clock,
        Routes(clock, local),
        KvConfig(kv_config_path(settings), clock, lambda: settings.max_kv_config_bytes, disk),
        lambda connection: addresses.route_address(connection.peer, connection.local),
        addresses.ha_address,
    )


def make_front(broker: Broker) -> Front:
    """The table of all requests, behind the guard; a code with two handlers, or without a row of
    permissions, is a programming error."""
    sends, pulls = Sends(broker), Pulls(broker)
    watch_timers(broker)
    table: dict[int, Handler] = {}
    for part in (
        pull.handlers(pulls),
        *(handlers(sends) for handlers in SEND_HANDLERS),
        name_service.handlers(broker),
        *(bound(broker, handlers) for handlers in HANDLERS),
    ):
        twice = table.keys() & part.keys()
        assert not twice, f"request codes {sorted(twice)} have two handlers"
        table |= part
    if broker.settings.is_slave:
        table = replication.refuse_as_slave(broker, table)
    return Front(Dispatcher(broker.guard.guarded(table), broker.latencies), sends, pulls)


def make_server(broker: Broker, front: Front, tls: Tls | None) -> Server:
    """The server of the broker's port: each connection feeds the hot path."""
    settings = broker.settings
    limits = limits_of(settings)
    holds = broker.long_polling
    quotas = quotas_of(settings, broker.clock, lambda each: each.waiting + holds.held_by(each))

    def feed(connection: Connection) -> Feed:
        made = HotFeed(
            connection, front.dispatcher, limits.frame_size_max, front.sends, front.pulls
        )
        return made if quotas is None else quotas.apply(made)

    return Server(
        feed,
        limits,
        connections_max=settings.max_connections,
        per_address_max=settings.max_connections_per_address,
        turns=broker.turns,
        tls=tls,
    )
