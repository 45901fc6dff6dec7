"""A pull under way."""

import msgspec

from aerobee.broker.auth.verdicts import Principal
from aerobee.broker.net.connection import Connection
from aerobee.broker.services.filters.selection import ALL, Selection
from aerobee.broker.store.results import Arrival
from aerobee.protocol.wire.headers import PullRequest


class Deferred(Exception):
    """The answer is large, and the loop has others to serve first: ask again in a later turn."""


class Pull(msgspec.Struct, eq=False):
    """One pull under way; also the hold that waits in long polling. A struct, because one is made
    for each pull."""

    connection: Connection
    codec: int
    opaque: int
    flag: int
    code: int
    fields: PullRequest
    topic: str
    queue_id: int
    queue_offset: int
    may_wait: bool  # whether its caller takes a Deferred
    principal: Principal | None  # who pulls; None: nobody asks
    selection: Selection = ALL
    entries_read: bool = False  # its queue's entries were brought into memory already
    filters_later: bool = False  # what was read still has to be selected from
    tick: int = 0

    @property
    def owner(self) -> Connection:
        return self.connection

    def wants(self, arrival: Arrival) -> bool:
        return self.selection.wants(arrival)
