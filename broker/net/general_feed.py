"""The general path of a connection: bytes in, answers out.

Each frame is decoded in full and passed to the dispatcher. A name server needs only this; in a
broker it handles the frames that the hot path does not. Frames of both paths pass through `feed`:
a check that applies to all requests belongs there.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from aerobee.broker.net.connection import Connection
from aerobee.broker.net.outbox import Part
from aerobee.broker.net.requests import Dispatcher, Request
from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import JSON, RESPONSE_FLAG, ROCKETMQ
from aerobee.protocol.wire.frame import FrameDecoder, RawFrame, encode_frame

ANSWERS_MAX: Final = 128 << 10  # bytes of answers that are made before other clients are served

# Which requests are answered in a turn of the loop whose slice is used up.
NOTHING: Final = 0
A_MESSAGE: Final = 1  # a client's first request, if it sends or pulls messages
ANYTHING: Final = 2  # deferred requests have waited for their turn already
DEFERRED: Final = -1  # "the frame has to wait", in place of a size

# Requests that send or receive messages; all others can wait for some milliseconds.
_MESSAGES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
    }
)

_JSON_CODE: Final = re.compile(rb'"code"\s*:\s*"?(\d{1,10})')  # int() refuses thousands of digits


def carries_messages(frame: RawFrame) -> bool:
    """Reads only the request's code: deferring a frame must be cheap."""
    codec, header, _ = frame
    if codec == JSON:
        found = _JSON_CODE.search(header)
        return found is not None and int(found[1]) in _MESSAGES
    if codec == ROCKETMQ:
        return int.from_bytes(header[:2], "big") in _MESSAGES
    return is_message_request(frame)


def is_message_request(frame: RawFrame) -> bool:
    """By the code of the decoded request, which `carries_messages` may miss in an odd header."""
    try:
        return decode_command(*frame).code in _MESSAGES
    except ProtocolError:
        return False


# Takes the requests of a read; returns answers to those over a limit, and the other requests.
Gate = Callable[[Sequence[RawFrame]], tuple[Sequence[Part], Sequence[RawFrame]]]


class GeneralFeed:
    """The feed of a connection."""

    def __init__(self, connection: Connection, dispatcher: Dispatcher, frame_size_max: int) -> None:
        self.connection = connection
        self.error: ProtocolError | None = None
        self.completed = 0
        self.kept_back: Sequence[RawFrame] = ()
        self.partial = False
        self.gate: Gate | None = None
        self._broken = False  # a header could not be read: nothing after it is answered
        self._decoder = FrameDecoder(frame_size_max)
        self._dispatch = dispatcher.dispatch
        self._turns = connection.turns

    @property
    def header_missing(self) -> bool:
        return self._decoder.header_missing

    def feed(self, data: bytes) -> Sequence[Part]:
        return self._take(self._decoder.feed(data))

    def _take(self, frames: Sequence[RawFrame]) -> Sequence[Part]:
        """Answer the frames of a read."""
        decoder = self._decoder
        self.partial = decoder.pending > 0
        if decoder.error is not None:
            self.error = decoder.error  # the frames before it are still answered
        if self.kept_back:
            self.kept_back = [*self.kept_back, *frames]
            return ()
        self.completed += len(frames)
        if self.gate is not None and frames:
            refused, frames = self.gate(frames)
            if refused:
                return [*refused, *self._answer(frames, A_MESSAGE)]
        return self._answer(frames, A_MESSAGE) if frames else ()

    def resume(self) -> Sequence[Part]:
        frames, self.kept_back = self.kept_back, ()
        return self._answer(frames, ANYTHING)

    def _answer(self, frames: Sequence[RawFrame], claim: int) -> Sequence[Part]:
        out: list[Part] = []
        size = 0
        for index, frame in enumerate(frames):
            answered = self._general(frame, out, claim)
            if answered == DEFERRED:
                self.kept_back = frames[index:]
                break
            if self._broken:
                break
            claim = NOTHING
            size += answered
            if size > ANSWERS_MAX or self.connection.is_full:
                self.kept_back = frames[index + 1 :]
                break
        return (b"".join(out),) if out else ()

    def _general(self, frame: RawFrame, out: list[Part], claim: int) -> int:
        """Decode one frame in full and answer it; returns the answer's size in bytes."""
        if (
            claim != ANYTHING
            and self._turns.is_over()
            and (claim == NOTHING or not carries_messages(frame))
        ):
            return DEFERRED
        try:
            command = decode_command(*frame)
        except ProtocolError as error:
            self.error = error
            self._broken = True
            return 0
        connection = self.connection
        if command.flag & RESPONSE_FLAG:
            connection.questions.answered(command)
            return 0
        connection.language = command.language
        connection.version = command.version
        before = connection.outbox.written
        answer = self._dispatch(Request(command, connection, connection.active_at))
        if answer is None:
            return connection.outbox.written - before  # a pull writes its answer itself
        encoded = encode_frame(answer)
        out.append(encoded)
        return len(encoded)
