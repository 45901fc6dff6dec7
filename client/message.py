"""Outgoing messages, receipts, and received messages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from aerobee.client.errors import AerobeeError, Misuse
from aerobee.client.serializers import Serializer
from aerobee.protocol.files import compression, record
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import StoredMessage
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.names import DLQ_PREFIX, RETRY_PREFIX

Body = Any  # bytes, bytearray, memoryview; with a serializer also what that takes
COMPRESS_OVER: Final = 4096
DELAY_LEVELS: Final = (
    *(1, 5, 10, 30),
    *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)


class Durability(Enum):
    """What the broker had done with a message when it answered."""

    ACCEPTED = "accepted"  # stored, as safe as the broker's flush mode makes it
    CACHED = "cached"  # in the page cache: a power cut may lose it
    FLUSHED = "flushed"  # on the disk
    FLUSH_TIMEOUT = "flush timeout"  # stored, the disk did not confirm in time
    SLAVE_TIMEOUT = "slave timeout"  # stored, the slave did not confirm in time
    NO_SLAVE = "no slave"  # stored, but there is no slave to confirm


_BY_CODE: Final = {
    0: Durability.ACCEPTED,
    10: Durability.FLUSH_TIMEOUT,
    11: Durability.NO_SLAVE,
    12: Durability.SLAVE_TIMEOUT,
}


class Receipt(NamedTuple):
    """The broker's confirmation that it has stored a message."""

    topic: str
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str
    durability: Durability
    recall_handle: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the broker reached the durability that it is configured for."""
        return self.durability in _FULL


_FULL: Final = frozenset((Durability.ACCEPTED, Durability.CACHED, Durability.FLUSHED))


def durability_of(code: int, flush_mode: str | None, waited: bool) -> Durability:
    """The status in a send's answer; the flush mode is known of Aerobee brokers only."""
    if code == 0 and not waited:
        return Durability.CACHED
    if code == 0 and flush_mode is not None:
        return Durability.FLUSHED if flush_mode == "SYNC_FLUSH" else Durability.CACHED
    return _BY_CODE[code]


def delay_level(seconds: float) -> int:
    """The smallest delay level of at least this delay; the last one for anything longer."""
    for level, level_seconds in enumerate(DELAY_LEVELS, 1):
        if seconds <= level_seconds:
            return level
    return len(DELAY_LEVELS)


class Outgoing(msgspec.Struct, gc=False, eq=False):
    """A message as a producer keeps it until it is stored."""

    topic: str
    body: bytes
    properties: str
    message_id: str
    order_key: str | None = None
    sys_flag: int = 0
    batchable: bool = True
    durable: bool = True


_RESERVED: Final = frozenset(
    (
        *(props.KEYS, props.TAGS, props.WAIT, props.DELAY, props.UNIQ_KEY, props.TRAN_MSG),
        *(props.PGROUP, props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS, props.TIMER_DELAY_SEC),
        *(props.REAL_TOPIC, props.REAL_QID, props.RETRY_TOPIC, props.SHARDING_KEY),
    )
)


def check_properties(properties: Mapping[str, str]) -> None:
    """Misuse when a property could not be read back as it was given."""
    for name, value in properties.items():
        if name in _RESERVED:
            raise Misuse(f"property {name!r} is reserved: use the matching option")
        if not name or not isinstance(value, str) or not value:
            raise Misuse(f"property {name!r}: name and value must be non-empty text")
        for text in (name, value):
            if props.NAME_END in text or props.PAIR_END in text:
                raise Misuse(
                    f"property {name!r} contains \\x01 or \\x02, which separate names and values"
                )


def checked_text(what: str, text: str) -> str:
    """A tag or key that can travel in a property."""
    if not isinstance(text, str) or not text:
        article = "an" if what[0] in "aeiou" else "a"
        raise Misuse(f"{article} {what} must be non-empty text, not {text!r}")
    if props.NAME_END in text or props.PAIR_END in text:
        raise Misuse(f"the {what} {text!r} contains \\x01 or \\x02")
    return text


def check_encoded(properties: str) -> None:
    """Misuse when the properties of a message are not text, or longer than a record can hold."""
    try:
        size = len(properties.encode())
    except UnicodeEncodeError as error:
        bad = error.object[error.start : error.end]
        raise Misuse(
            f"tag, keys and properties are sent as UTF-8, which cannot encode {bad!a}"
        ) from None
    if size > props.PROPERTIES_SIZE_MAX:
        raise Misuse(
            f"tag, keys and properties take {size} bytes; "
            f"a record holds {props.PROPERTIES_SIZE_MAX}"
        )


_PLAIN_KEY: Final = re.compile(r"[^\x00-\x20]+")


def key_text(key: str | Iterable[str]) -> str:
    """Keys are separated by blanks, so a single one must not contain any."""
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return key
    keys = [key] if isinstance(key, str) else list(key)
    for one in keys:
        if any(blank in checked_text("key", one) for blank in " \t\n"):
            raise Misuse(f"the key {one!r} contains a blank; give several keys as a list")
    return " ".join(keys)


def timestamp_ms(moment: datetime | float | int) -> int:
    """Milliseconds of a datetime (one without a zone is local time) or of Unix seconds."""
    # Truncated, not rounded, as the broker does: a message stored now is never before now.
    try:
        seconds = moment.timestamp() if isinstance(moment, datetime) else moment
        return math.floor(seconds * 1000)
    except (ValueError, OverflowError):
        raise Misuse(f"{moment!r} is not a time") from None


def time_of(ms: int) -> datetime:
    """The time of a message; one outside of the years 1 to 9999 is the nearest one inside.

    A producer may give any number as the time of birth.
    """
    return datetime.fromtimestamp(min(max(ms, _MS_MIN), _MS_MAX) / 1000, UTC)


_DAY_MS: Final = 86_400_000
# A day less, for it to be a time in every time zone.
_MS_MIN: Final = round(datetime.min.replace(tzinfo=UTC).timestamp()) * 1000 + _DAY_MS
_MS_MAX: Final = round(datetime.max.replace(tzinfo=UTC).timestamp()) * 1000 - 2 * _DAY_MS


class DeliveringQueue(Protocol):
    """The consumer's queue that a message came from; it is notified of ack, retry and reject."""

    revoked: bool

    @property
    def serializer(self) -> Serializer | None: ...

    def finish(self, message: Message) -> None: ...

    async def retry(self, message: Message, delay: float | None, reason: str) -> None: ...

    async def reject(self, message: Message, reason: str) -> None: ...

    async def reply(
        self, message: Message, body: Body, properties: Mapping[str, str] | None
    ) -> bool: ...


class Received:
    """The attributes of a message that came from a broker."""

    __slots__ = (
        "_body",
        "_delivery",
        "_properties",
        "_serializer",
        "broker",
        "finished",
        "reconsume_times",
        "stored",
    )

    def __init__(
        self,
        stored: StoredMessage,
        broker: str,
        delivery: DeliveringQueue | None = None,
        serializer: Serializer | None = None,
    ) -> None:
        self.stored = stored
        self.broker = broker
        self.finished = False  # acked, or handed back
        self.reconsume_times = stored.reconsume_times
        self._delivery = delivery
        self._serializer = serializer  # the queue's, if it came from one
        self._properties: dict[str, str] | None = None
        self._body: bytes | None = None

    @property
    def queue(self) -> MessageQueue:
        """Its offset in the queue it came from, which may be a retry queue."""
        return MessageQueue(self.stored.topic, self.broker, self.stored.queue_id)

    @property
    def body(self) -> bytes:
        """The body, decompressed if the producer had compressed it."""
        if self._body is None:
            raw = self.stored.body
            flag = self.stored.sys_flag
            self._body = inflate(bytes(raw), flag) if flag & record.COMPRESSED else bytes(raw)
        return self._body

    @property
    def value(self) -> Any:
        """The body decoded by the serializer."""
        serializer = self._serializer if self._delivery is None else self._delivery.serializer
        if serializer is None:
            raise Misuse("no serializer was given: connect(serializer=JSON), or ConsumerOptions")
        return serializer.loads(self.body)

    @property
    def properties(self) -> dict[str, str]:
        if self._properties is None:
            self._properties = self.stored.property_map()
        return self._properties

    @property
    def topic(self) -> str:
        """The topic it was sent to, also when it comes from a retry queue."""
        topic = self.stored.topic
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return props.get(self.stored.properties, props.RETRY_TOPIC) or topic
        return topic

    @property
    def message_id(self) -> str:
        """The producer's unique id; the offset id when the producer gave none."""
        unique = props.get(self.stored.properties, props.UNIQ_KEY)
        return unique or self.stored.message_id

    @property
    def offset_message_id(self) -> str:
        return self.stored.message_id

    @property
    def tag(self) -> str | None:
        return props.get(self.stored.properties, props.TAGS)

    @property
    def keys(self) -> list[str]:
        # Only at U+0020, as brokers do: other white space is part of a key.
        return [
            key for key in (props.get(self.stored.properties, props.KEYS) or "").split(" ") if key
        ]

    @property
    def failure(self) -> str | None:
        """Why it was retried or rejected the last time, if a reason was given."""
        return props.get(self.stored.properties, props.LAST_FAILURE)

    @property
    def queue_offset(self) -> int:
        return self.stored.queue_offset

    @property
    def stored_at(self) -> datetime:
        return time_of(self.stored.store_timestamp)

    @property
    def born_at(self) -> datetime:
        return time_of(self.stored.born_timestamp)

    def __repr__(self) -> str:
        where = f"{self.queue.broker_name}/{self.queue.topic}/{self.queue.queue_id}"
        return f"<Message {self.message_id} {where}@{self.queue_offset} {len(self.stored.body)} B>"


class Message(Received):
    """A message that came from a broker.

    Only a message that a consumer delivered can be acked, retried, rejected or replied to.
    """

    __slots__ = ()

    async def ack(self) -> None:
        """Acknowledge it: the group does not get it again."""
        self._delivered().finish(self)

    async def retry(self, delay: float | None = None, *, reason: str = "") -> None:
        """Ask for it again after `delay` seconds (None: the declared backoff, or growing delays).

        With Aerobee the delay is exact and `reason` travels with the message (`failure`); with
        Apache RocketMQ the delay is rounded up to a delay level.
        """
        await self._delivered().retry(self, delay, reason)

    async def reject(self, reason: str = "") -> None:
        """Move it to the group's dead letters at once, without retries."""
        await self._delivered().reject(self, reason)

    async def reply(self, body: Body, *, properties: Mapping[str, str] | None = None) -> bool:
        """Reply to a message that was sent by `request`; this does not ack it.

        False when the client that asked is gone.
        """
        return await self._delivered().reply(self, body, properties)

    def _next_attempt(self) -> Message:
        """The same message for one more attempt in its queue; this one is finished."""
        message = Message(self.stored, self.broker, self._delivery)
        message.reconsume_times = self.reconsume_times + 1
        self.finished = True
        return message

    def _delivered(self) -> DeliveringQueue:
        if self._delivery is None:
            raise Misuse(
                "only a message that a consumer delivered can be acked, retried or replied to"
            )
        return self._delivery


def given_body(message: Outgoing) -> bytes:
    """The body as given to the producer."""
    return inflate(message.body, message.sys_flag) if message.sys_flag else message.body


def inflate(raw: bytes, sys_flag: int) -> bytes:
    """The decompressed body; AerobeeError when it cannot be decompressed."""
    try:
        return compression.inflate(raw, sys_flag)
    except compression.CannotInflate as error:
        raise AerobeeError(str(error), hint=error.hint) from None
