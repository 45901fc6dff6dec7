"""The running broker as its handlers see it: the settings and the services, by name.

A plain container. `app` fills it; handlers hold it; services never do, they are given what they
need. An attribute is set before the first connection is accepted, or not used by any handler.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee.broker.addresses import Addresses
    from aerobee.broker.clock import Clock
    from aerobee.broker.handlers.pull import Pulls
    from aerobee.broker.handlers.send import Sends
    from aerobee.broker.histogram import Histogram
    from aerobee.broker.services.batch_ledger import BatchLedger
    from aerobee.broker.services.clients import Clients
    from aerobee.broker.services.filters import Filters
    from aerobee.broker.services.groups import Groups
    from aerobee.broker.services.long_polling import LongPolling
    from aerobee.broker.services.offsets import Offsets
    from aerobee.broker.services.put_hooks import PutHooks
    from aerobee.broker.services.searches import Searches
    from aerobee.broker.services.stats import Stats
    from aerobee.broker.services.topics import Topics
    from aerobee.broker.settings import Settings
    from aerobee.broker.store.message_store import MessageStore
    from aerobee.broker.turns import Turns


class Broker:
    """What handlers work with."""

    settings: "Settings"
    clock: "Clock"
    turns: "Turns"
    addresses: "Addresses"  # ours, as each client is told it
    store: "MessageStore"
    topics: "Topics"
    groups: "Groups"
    offsets: "Offsets"
    clients: "Clients"  # producers and consumers by their heartbeats
    long_polling: "LongPolling"
    searches: "Searches"
    stats: "Stats"
    latencies: "dict[int, Histogram]"  # request code -> how long its handler took
    sends: "Sends"  # what the hot path shares with the handlers of sends
    pulls: "Pulls"
    names: Any  # the name service's table
    retry: Any  # services.retry
    schedule: Any
    timers: Any
    transactions: Any
    order_locks: Any
    batch_ledger: "BatchLedger"  # batches of the exactly-once Spark sink

    def __init__(self) -> None:
        self.put_hooks: PutHooks | None = None  # delays, timers, half messages
        self.filters: Filters | None = None  # SQL92, by group
        self.escape: Any = None  # puts a message that the broker itself makes
