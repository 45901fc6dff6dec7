"""EXPLAIN_MESSAGE, an Aerobee extension: what one broker knows of a message and its consumers.

The broker returns facts as JSON; the client derives the verdict. `None` is "not known" throughout:
RocketMQ's brokers know less, and other requests gather their facts into the same structs.
"""

from typing import Final

import msgspec

EXPLAIN_MESSAGE: Final = 20130

# The state of a pending copy.
WAITING: Final = "waiting"
DONE: Final = "done"


class Facts(msgspec.Struct, omit_defaults=True, rename="camel", kw_only=True):
    pass


class Copy(Facts):
    """One record with the message's id: in its topic, or kept for later, retried, dead."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    stored_at: int
    born_at: int
    born_host: str = ""
    reconsume_times: int = 0
    sys_flag: int = 0
    properties: dict[str, str] = {}
    on_disk: bool | None = None
    in_queue: bool | None = None  # consumers can see it
    due_at: int | None = None  # of a timer or a delayed message
    state: str | None = None  # of what waits: WAITING or DONE


class Filter(Facts):
    """What a group selected when it reached the message."""

    expression_type: str
    expression: str
    since: int | None = None
    matches: bool | None = None
    term: str = ""  # the part that decided


class Reset(Facts):
    """An operator moved a group."""

    at: int
    was: int
    to: int
    by: str = ""


class Standing(Facts):
    """A group's progress in the queue of one copy."""

    topic: str
    queue_id: int
    queue_offset: int  # of the copy
    committed: int = -1
    pulled: int | None = None
    puller: str = ""
    max_offset: int | None = None
    refusal: str = ""  # why its pulls of this queue are refused
    began: tuple[int, int] | None = None  # when and at which offset the group began
    passed: tuple[int | None, int] | None = None  # its commit passed the copy between these times
    resets: list[Reset] = []  # of this queue, in their order
    filter: Filter | None = None


class Member(Facts):
    client_id: str
    address: str


class Group(Facts):
    """A consumer group."""

    group: str
    is_known: bool = True
    consume_enabled: bool = True
    retry_max: int | None = None
    broadcasts: bool = False
    members: list[Member] = []
    left_at: int | None = None  # when the last member left
    left_by: str = ""
    subscribes: bool | None = None  # the message's topic, now
    conflict: list[str] = []  # what its members subscribe, where they differ
    standings: list[Standing] = []


class Removed(Facts):
    """A file of the log that is gone."""

    start: int
    end: int
    written_until: int  # ms
    at: int
    reason: str


class Broker(Facts):
    """All that one broker knows about the message."""

    broker: str
    now: int
    copies: list[Copy] = []
    groups: list[Group] = []
    topic: str = ""  # the destination topic, as far as the copies show it
    sync_flush: bool | None = None
    removed: Removed | None = None  # the file that held it, or held what was stored at its time
    has_history: bool = False


encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(Broker)


def decode(data: bytes | memoryview) -> Broker:
    """ValueError (msgspec's) when it is something else."""
    return _decoder.decode(data)
