"""Op messages, which mark half messages as done, and the roots of halves and their copies."""

from typing import Final

from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import Message, StoredMessage
from aerobee.protocol.names import TRANSACTION_OP_TOPIC

QUEUE_ID: Final = 0  # of both topics
_OP_PROPERTIES: Final = props.encode({props.TAGS: "d"})


def op_offsets(body: bytes | memoryview) -> list[int]:
    """The half queue offsets of an op message: `12` of 4.x, `12,15,` of 5.x."""
    words = str(body, "utf-8", "replace").split(",")
    return [int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 20]


def op_message(half_queue_offset: int, half: StoredMessage) -> Message:
    """Marks a half message as done, in the form that 4.x and 5.x both read."""
    return Message(
        TRANSACTION_OP_TOPIC,
        QUEUE_ID,
        str(half_queue_offset).encode(),
        _OP_PROPERTIES,
        born_timestamp=half.born_timestamp,
        born_host=half.store_host,
        store_host=half.store_host,
    )


def root_of(half: StoredMessage) -> int:
    """The queue offset of the transaction's first half message."""
    first = half.property(props.TRAN_PREPARED_QUEUE_OFFSET)
    if first and first.isascii() and first.isdigit() and int(first) <= half.queue_offset:
        return int(first)
    return half.queue_offset
