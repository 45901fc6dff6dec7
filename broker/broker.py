"""The running broker as its handlers see it: the settings and the services, by name.

A plain container. `app` fills it; handlers hold it; services never do, they are given what they
need. An attribute is set before the first connection is accepted, or not used by any handler.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee.broker.clock import Clock
    from aerobee.broker.connection import Address, Connection


def reached_address(connection: "Connection") -> "Address":
    """The address by which the client reached us."""
    return connection.local


class Broker:
    """What handlers work with."""

    settings: Any  # broker.settings: one attribute for each key, in snake case
    clock: "Clock"
    store: Any  # store.MessageStore
    topics: Any  # services.topics
    groups: Any  # services.groups
    offsets: Any  # services.offsets
    clients: Any  # services.clients: producers and consumers by their heartbeats
    long_polling: Any  # services.long_polling
    names: Any  # the name service's table
    stats: Any
    schedule: Any
    timers: Any
    transactions: Any
    order_locks: Any

    def __init__(self) -> None:
        # IP and port that this client can dial: in routes, and as the store host of its messages.
        self.address_for: Callable[[Connection], Address] = reached_address
        self.put_hooks: Any = None  # services.put_hooks: delays, timers, half messages
        self.filters: Any = None  # SQL92
        self.escape: Any = None  # puts a message that the broker itself makes
