"""The running broker as its handlers see it: the settings and the services, by name.

A plain record. `daemon.wiring` makes it, handlers hold it; services never do, they are given what
they need.
"""

from dataclasses import dataclass, field

from aerobee.broker.auth.guard import Guard
from aerobee.broker.base.clock import Clock
from aerobee.broker.base.histogram import Histogram
from aerobee.broker.base.turns import Turns
from aerobee.broker.net.addresses import Addresses
from aerobee.broker.services.batch_ledger import BatchLedger
from aerobee.broker.services.clients.clients import Clients
from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.filters.sql_filters import Filters
from aerobee.broker.services.groups.table import Groups
from aerobee.broker.services.long_polling import LongPolling
from aerobee.broker.services.name_service.service import NameService
from aerobee.broker.services.offsets import Offsets
from aerobee.broker.services.order_locks import OrderLocks
from aerobee.broker.services.put_hooks import PutHooks
from aerobee.broker.services.replication import Replication
from aerobee.broker.services.retry import Retry
from aerobee.broker.services.searches import Searches
from aerobee.broker.services.stats import Stats
from aerobee.broker.services.timers.firing import Timers
from aerobee.broker.services.topics.table import Topics
from aerobee.broker.services.transactions.service import Transactions
from aerobee.broker.services.why.history import History
from aerobee.broker.settings import Settings
from aerobee.broker.store.message_store import MessageStore


@dataclass(kw_only=True, eq=False)
class Broker:
    """What handlers work with."""

    settings: Settings
    clock: Clock
    turns: Turns
    addresses: Addresses  # of this broker, as each client sees it
    store: MessageStore
    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients  # producers and consumers by their heartbeats
    long_polling: LongPolling
    searches: Searches
    stats: Stats
    filters: Filters  # SQL92, by group
    put_hooks: PutHooks  # delays, timers, half messages
    retry: Retry
    schedule: Schedule
    timers: Timers
    transactions: Transactions
    order_locks: OrderLocks
    history: History  # for `aerobee why`
    batch_ledger: BatchLedger  # batches of the exactly-once Spark sink
    name_service: NameService
    guard: Guard  # wraps the handlers
    replication: Replication = field(default_factory=Replication)
    latencies: dict[int, Histogram] = field(default_factory=dict)  # by request code
