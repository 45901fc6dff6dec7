"""A pull in progress."""

import msgspec

from aerobee.broker.auth.verdicts import Principal
from aerobee.broker.net.connection import Connection
from aerobee.broker.services.filters.selection import ALL, Selection
from aerobee.broker.store.results import Arrival
from aerobee.protocol.wire.headers import PullRequest


class Deferred(Exception):
    """The answer is large, and other clients come first: retry in a later turn of the loop."""


class Pull(msgspec.Struct, eq=False):
    """One pull in progress; also the entry that waits in long polling. A struct, because one is
    created for each pull."""

    connection: Connection
    codec: int
    opaque: int
    flag: int
    code: int
    fields: PullRequest
    topic: str
    queue_id: int
    queue_offset: int
    may_wait: bool  # whether its caller handles `Deferred`
    principal: Principal | None  # who pulls; None: without access control
    selection: Selection = ALL
    entries_read: bool = False  # its queue's entries were brought into memory already
    filters_later: bool = False  # the records that were read still have to be filtered
    tick: int = 0

    @property
    def owner(self) -> Connection:
        return self.connection

    def wants(self, arrival: Arrival) -> bool:
        return self.selection.wants(arrival)
