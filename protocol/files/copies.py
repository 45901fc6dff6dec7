"""Messages that are sent again as copies: which properties are not copied."""

from typing import Final

from aerobee.protocol.files import properties as props

REPLAYED_FROM: Final = "AEROBEE_REPLAYED_FROM"  # of a copy of a dead letter: that one's offset id
SYSTEM_PROPERTIES: Final = frozenset(
    (
        *(props.KEYS, props.TAGS, props.UNIQ_KEY, props.WAIT, props.DELAY, props.RETRY_TOPIC),
        *(props.REAL_TOPIC, props.REAL_QID, props.ORIGIN_MESSAGE_ID, props.MSG_REGION),
        *(props.TRACE_ON, props.CLUSTER, props.RECONSUME_TIME, props.MAX_RECONSUME_TIMES),
        *(props.DLQ_ORIGIN_TOPIC, props.DLQ_ORIGIN_MESSAGE_ID, props.CRC32, props.SHARDING_KEY),
        *(props.TIMER_DELAY_MS, props.TIMER_DELAY_SEC, props.TIMER_DELIVER_MS),
        *(props.TIMER_OUT_MS, props.TIMER_ENQUEUE_MS, props.TIMER_DEQUEUE_MS),
        *(props.TIMER_ROLL_TIMES, props.TRAN_MSG, props.PGROUP, props.TRANSACTION_ID),
    )
)
