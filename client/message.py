"""What goes out and what comes in: outgoing messages, receipts, received messages."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from aerobee.client.errors import AerobeeError, Misuse
from aerobee.protocol import properties as props
from aerobee.protocol import record
from aerobee.protocol.fastjson import MessageQueue
from aerobee.protocol.record import StoredMessage

if TYPE_CHECKING:
    from aerobee.client.process_queue import ProcessQueue

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
COMPRESS_OVER: Final = 4096
PROPERTIES_SIZE_MAX: Final = 32767
DELAY_LEVELS: Final = (
    *(1, 5, 10, 30),
    *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)


class Durability(Enum):
    """What the broker had done with a message when it answered."""

    ACCEPTED = "accepted"  # stored, as safe as the broker's flush mode makes it
    CACHED = "cached"  # in the page cache: a power cut may lose it
    FLUSHED = "flushed"  # on the disk
    REPLICATED = "replicated"  # on a slave too
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
    """The broker's word that it has stored a message."""

    topic: str
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str
    durability: Durability
    recall_handle: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the broker reached all the durability that it is set to."""
        return self.durability in _FULL


_FULL: Final = frozenset(
    (Durability.ACCEPTED, Durability.CACHED, Durability.FLUSHED, Durability.REPLICATED)
)


def durability_of(code: int, flush_mode: str | None, waited: bool) -> Durability:
    """What an answer to a send says; only of an Aerobee broker the flush mode is known."""
    if code == 0 and not waited:
        return Durability.CACHED
    if code == 0 and flush_mode is not None:
        return Durability.FLUSHED if flush_mode == "SYNC_FLUSH" else Durability.CACHED
    return _BY_CODE[code]


def delay_level(seconds: float) -> int:
    """The smallest delay level that waits at least so long; the last one for anything longer."""
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
            raise Misuse(f"property {name!r} has a meaning of its own: use the matching option")
        if not name or not isinstance(value, str) or not value:
            raise Misuse(f"property {name!r}: name and value must be text that is not empty")
        for text in (name, value):
            if props.NAME_END in text or props.PAIR_END in text:
                raise Misuse(
                    f"property {name!r} contains \\x01 or \\x02, which end names and values"
                )


def checked_text(what: str, text: str) -> str:
    """A tag or key that can travel in a property."""
    if not isinstance(text, str) or not text:
        raise Misuse(f"a {what} is text that is not empty, not {text!r}")
    if props.NAME_END in text or props.PAIR_END in text:
        raise Misuse(f"the {what} {text!r} contains \\x01 or \\x02")
    return text


def check_encoded(properties: str) -> None:
    """Misuse when the properties of a message are no text, or longer than a record can hold."""
    try:
        size = len(properties.encode())
    except UnicodeEncodeError as error:
        bad = error.object[error.start : error.end]
        raise Misuse(f"tag, keys and properties are sent as UTF-8, which has no {bad!a}") from None
    if size > PROPERTIES_SIZE_MAX:
        raise Misuse(
            f"tag, keys and properties take {size} bytes; a record holds {PROPERTIES_SIZE_MAX}"
        )


_PLAIN_KEY: Final = re.compile(r"[^\x00-\x20]+")


def key_text(key: str | Iterable[str]) -> str:
    """Several keys are kept apart by blanks, so a single one has none."""
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return key
    keys = [key] if isinstance(key, str) else list(key)
    for one in keys:
        if any(blank in checked_text("key", one) for blank in " \t\n"):
            raise Misuse(f"the key {one!r} contains a blank; give several keys as a list")
    return " ".join(keys)


def timestamp_ms(moment: datetime | float | int) -> int:
    """Milliseconds of a datetime (one without a zone is local time) or of Unix seconds."""
    # Cut, not rounded, as the broker cuts its own time: what is stored now is not before now.
    try:
        seconds = moment.timestamp() if isinstance(moment, datetime) else moment
        return math.floor(seconds * 1000)
    except (ValueError, OverflowError):
        raise Misuse(f"{moment!r} is no time") from None


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


class Message:
    """A message that came from a broker.

    Only a message that a consumer delivered can be acked or retried.
    """

    __slots__ = (
        "_body",
        "_process_queue",
        "_properties",
        "broker",
        "finished",
        "reconsume_times",
        "stored",
    )

    def __init__(
        self,
        stored: StoredMessage,
        broker: str,
        process_queue: ProcessQueue | None = None,
    ) -> None:
        self.stored = stored
        self.broker = broker
        self.finished = False  # acked, or handed back for a retry
        self.reconsume_times = stored.reconsume_times
        self._process_queue = process_queue
        self._properties: dict[str, str] | None = None
        self._body: bytes | None = None

    @property
    def queue(self) -> MessageQueue:
        """Where it is stored; of a retry queue when it comes from one."""
        return MessageQueue(self.stored.topic, self.broker, self.stored.queue_id)

    @property
    def body(self) -> bytes:
        """The body, inflated when the producer had compressed it."""
        if self._body is None:
            raw = self.stored.body
            flag = self.stored.sys_flag
            self._body = inflate(bytes(raw), flag) if flag & record.COMPRESSED else bytes(raw)
        return self._body

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
        # At the blank only, as brokers do: other scripts' blanks are part of a key.
        return [
            key for key in (props.get(self.stored.properties, props.KEYS) or "").split(" ") if key
        ]

    @property
    def queue_offset(self) -> int:
        return self.stored.queue_offset

    @property
    def stored_at(self) -> datetime:
        return _time(self.stored.store_timestamp)

    @property
    def born_at(self) -> datetime:
        return _time(self.stored.born_timestamp)

    async def ack(self) -> None:
        """Say that it is done: the group does not get it again."""
        self._consumer_queue().finish(self)

    async def retry(self, delay: float | None = None) -> None:
        """Ask for it again after `delay` seconds (None: the group's growing delays).

        With Aerobee the delay is exact; with Apache RocketMQ it is rounded up to a delay level.
        """
        await self._consumer_queue().retry(self, delay)

    def again(self) -> Message:
        """The same message for one more attempt in its queue; this one is finished."""
        message = Message(self.stored, self.broker, self._process_queue)
        message.reconsume_times = self.reconsume_times + 1
        self.finished = True
        return message

    def _consumer_queue(self) -> ProcessQueue:
        if self._process_queue is None:
            raise Misuse("only a message that a consumer delivered can be acked or retried")
        return self._process_queue

    def __repr__(self) -> str:
        where = f"{self.queue.broker_name}/{self.queue.topic}/{self.queue.queue_id}"
        return f"<Message {self.message_id} {where}@{self.queue_offset} {len(self.stored.body)} B>"


def compress(body: bytes) -> tuple[bytes, int]:
    """The smaller form of a body and its sys flag."""
    packed = zlib.compress(body, 5)
    return (packed, record.COMPRESSED) if len(packed) < len(body) else (body, 0)


def given_body(message: Outgoing) -> bytes:
    """The body as the producer was given it."""
    return inflate(message.body, message.sys_flag) if message.sys_flag else message.body


def inflate(raw: bytes, sys_flag: int) -> bytes:
    """The body as it was before compressing; AerobeeError when it cannot be."""
    kind = sys_flag & record.COMPRESSION_MASK
    if kind in (0, record.COMPRESSION_ZLIB):
        decompress: Callable[[bytes], bytes] = zlib.decompress
    else:
        decompress = _decompressor(kind)
    try:
        return decompress(raw)
    except Exception as error:  # each library has its own
        raise AerobeeError(f"the body of form {kind:#x} cannot be inflated: {error}") from None


def _decompressor(kind: int) -> Callable[[bytes], bytes]:
    """From the package for a form that Java's producers can be set to."""
    if kind not in _PACKAGES:
        raise AerobeeError(f"the body is compressed in form {kind:#x}, which is not known")
    module, package = _PACKAGES[kind]
    try:
        library: Any = import_module(module)
    except ImportError:
        raise AerobeeError(
            f"the body is compressed in form {kind:#x}, which needs the package {package}",
            hint=f"pip install {package}",
        ) from None
    if kind == record.COMPRESSION_ZSTD:  # Java's frames do not tell their size beforehand
        return lambda raw: bytes(library.ZstdDecompressor().decompressobj().decompress(raw))
    return lambda raw: bytes(library.decompress(raw))


_PACKAGES: Final = {
    record.COMPRESSION_LZ4: ("lz4.frame", "lz4"),
    record.COMPRESSION_ZSTD: ("zstandard", "zstandard"),
}
