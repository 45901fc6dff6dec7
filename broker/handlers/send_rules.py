"""The rules of a send, for both paths: `handlers.send`, the general one, and `fast.hot_path`.

A plain send is one whose properties hold none of UNUSUAL_NAMES, not even inside another name or a
value, and whose sys flag has none of UNUSUAL_SYS_FLAGS. The hot path takes these and leaves all
others to the general path. It has `complete` inlined for speed; tests compare the two.
"""

from typing import Final

from aerobee.broker.services.put_hooks import MARKS
from aerobee.broker.store.results import PutStatus
from aerobee.protocol.files import properties
from aerobee.protocol.files.ids import UniqueIds
from aerobee.protocol.files.record import TRANSACTION_MASK
from aerobee.protocol.files.record_layout import BORN_HOST_V6, STORE_HOST_V6
from aerobee.protocol.wire.codes import ResponseCode

# Removed from a client's properties: the broker adds its own values of the first three to each
# message, and writes the last one when a message is popped.
STRIPPED: Final = (
    properties.MSG_REGION,
    properties.TRACE_ON,
    properties.CLUSTER,
    properties.POP_CK,
)
UNUSUAL_NAMES: Final = (*STRIPPED, *MARKS)
UNUSUAL_SYS_FLAGS: Final = TRANSACTION_MASK | BORN_HOST_V6 | STORE_HOST_V6

CODES: Final = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGECACHE_BUSY: ResponseCode.SYSTEM_BUSY,
}
STORED: Final = frozenset(
    {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
)
# Remarks for a message that is stored, but not as safe as configured.
LATE: Final = {
    PutStatus.FLUSH_DISK_TIMEOUT: "stored, but not on disk within syncFlushTimeout",
    PutStatus.FLUSH_SLAVE_TIMEOUT: "stored, but not on enough slaves within slaveTimeout",
    PutStatus.SLAVE_NOT_AVAILABLE: "stored, but no slave is connected and close enough to copy it",
}


def code_of(status: PutStatus) -> int:
    return CODES.get(status, ResponseCode.SYSTEM_ERROR)


def flush_failed_text(status: PutStatus) -> str:
    return (
        f"the message was not made durable ({status.name}): the disk failed; "
        f"see the broker's log, repair the disk and restart it"
    )


def complete(text: str, added: str, unique_ids: UniqueIds) -> str:
    """The properties to store: without those that clients may not set, with a unique key and with
    those that the broker adds."""
    if any(name in text for name in STRIPPED):
        text = properties.remove(text, *STRIPPED)
    if text and not text.endswith(properties.PAIR_END):
        text += properties.PAIR_END
    if properties.get(text, properties.UNIQ_KEY) is None:
        text += properties.encode({properties.UNIQ_KEY: unique_ids.next()})
    return text + added
