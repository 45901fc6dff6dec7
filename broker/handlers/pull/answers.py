"""The answer to a pull: with messages, without any, or a refusal."""

from collections.abc import Sequence
from typing import Final

from aerobee.broker.handlers.pull.one_pull import Pull
from aerobee.broker.net.answers import found_head, pull_fields
from aerobee.broker.net.outbox import JOIN_MAX, Part
from aerobee.broker.net.requests import log_refusal
from aerobee.broker.store.results import ReadResult, ReadStatus
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from aerobee.protocol.wire.frame import encode_frame

CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
# Nothing was ever there: correct for a reader at offset 0, wrong for one farther on.
EMPTY: Final = frozenset({ReadStatus.NO_MESSAGE_IN_QUEUE, ReadStatus.NO_MATCHED_LOGIC_QUEUE})
# The reader has seen all there is before its next offset.
SEEN: Final = EMPTY | {ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.OFFSET_OVERFLOW_ONE}


def with_messages(
    pull: Pull, result: ReadResult, views: Sequence[Part], next_broker: int
) -> Sequence[Part]:
    if pull.flag & ONEWAY_FLAG:
        result.release()
        return ()
    size = result.size
    head = found_head(
        pull.codec,
        pull.opaque,
        result.next_offset,
        result.min_offset,
        result.max_offset,
        size,
        next_broker,
    )
    if size <= JOIN_MAX:
        joined = b"".join((head, *views))
        result.release()
        return (joined,)
    pull.connection.outbox.release_when_sent(result.release)
    return (head, *views)


def without_messages(
    pull: Pull,
    code: int,
    remark: str,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    next_broker: int = 0,
) -> Sequence[Part]:
    if pull.flag & ONEWAY_FLAG:
        return ()
    fields = pull_fields(next_offset, min_offset, max_offset, next_broker)
    answer = Command(code, fields, b"", pull.opaque, RESPONSE_FLAG, remark, codec=pull.codec)
    return (encode_frame(answer),)


def refusal(pull: Pull, code: int, remark: str) -> Sequence[Part]:
    if pull.flag & ONEWAY_FLAG:
        return ()
    answer = Command(code, {}, b"", pull.opaque, RESPONSE_FLAG, remark, codec=pull.codec)
    log_refusal(pull.connection, pull.code, False, answer)
    return (encode_frame(answer),)
