"""The copies of one message (in its topic, delayed, retried, dead), as EXPLAIN_MESSAGE answers
them.

It needs the stored record and the answer's structs, so it is above both `files` and `wire`.
"""

from typing import Final

from aerobee.protocol.files import properties as props
from aerobee.protocol.files.ids import decode_host
from aerobee.protocol.files.record import StoredMessage
from aerobee.protocol.names import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_HALF_TOPIC,
)
from aerobee.protocol.wire.message_facts import Copy

# Topics that hold messages of other topics until they are due or decided.
HOLDING_TOPICS: Final = (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
)


def original_topic(message: StoredMessage) -> str:
    """The topic that the producer sent the message to."""
    for name in (props.DLQ_ORIGIN_TOPIC, props.RETRY_TOPIC):
        if origin := message.property(name):
            return origin
    if message.topic in HOLDING_TOPICS:
        return message.property(props.REAL_TOPIC) or message.topic
    return message.topic


def copy_of(message: StoredMessage) -> Copy:
    """The facts in the record itself, with all of its properties."""
    return Copy(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        size=message.size,
        stored_at=message.store_timestamp,
        born_at=message.born_timestamp,
        born_host="{}:{}".format(*decode_host(message.born_host)),
        reconsume_times=message.reconsume_times,
        sys_flag=message.sys_flag,
        properties=message.property_map(),
    )
