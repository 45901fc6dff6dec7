"""Bytes of one connection in, answers out, the general way.

Each frame is decoded in full and handed to the dispatcher. That is all that a name server needs,
and what the hot path does with the frames that it does not take itself.
"""

from collections.abc import Sequence
from typing import Final

from aerobee.broker.connection import Connection, Part
from aerobee.broker.dispatch import Dispatcher, Request
from aerobee.protocol.codecs import ProtocolError, decode_command
from aerobee.protocol.command import RESPONSE_FLAG
from aerobee.protocol.frame import FrameDecoder, RawFrame, encode_frame

ANSWERS_MAX: Final = 4 << 20  # bytes of answers made before the client has taken the first


class GeneralFeed:
    """The feed of a connection."""

    def __init__(self, connection: Connection, dispatcher: Dispatcher, frame_size_max: int) -> None:
        self.connection = connection
        self.error: ProtocolError | None = None
        self.completed = 0
        self.kept_back: Sequence[RawFrame] = ()
        self.partial = False
        self._broken = False  # by a header that cannot be read: nothing after it is answered
        self._decoder = FrameDecoder(frame_size_max)
        self._dispatch = dispatcher.dispatch

    @property
    def header_missing(self) -> bool:
        return self._decoder.header_missing

    def feed(self, data: bytes) -> Sequence[Part]:
        decoder = self._decoder
        frames = decoder.feed(data)
        self.partial = decoder.pending > 0
        if decoder.error is not None:
            self.error = decoder.error  # the frames before it are answered all the same
        if self.kept_back:
            self.kept_back = [*self.kept_back, *frames]
            return ()
        self.completed += len(frames)
        return self._answer(frames) if frames else ()

    def resume(self) -> Sequence[Part]:
        frames, self.kept_back = self.kept_back, ()
        return self._answer(frames)

    def _answer(self, frames: Sequence[RawFrame]) -> Sequence[Part]:
        out: list[Part] = []
        size = 0
        for index, frame in enumerate(frames):
            size += self._general(frame, out)
            if self._broken:
                break
            if size > ANSWERS_MAX or self.connection.is_full:
                self.kept_back = frames[index + 1 :]
                break
        return (b"".join(out),) if out else ()

    def _general(self, frame: RawFrame, out: list[Part]) -> int:
        """Decode one frame in full and have it answered; how many bytes of answer there are."""
        try:
            command = decode_command(*frame)
        except ProtocolError as error:
            self.error = error
            self._broken = True
            return 0
        connection = self.connection
        if command.flag & RESPONSE_FLAG:
            connection.answered(command)
            return 0
        connection.language = command.language
        connection.version = command.version
        before = connection.written
        answer = self._dispatch(Request(command, connection, connection.active_at))
        if answer is None:
            return connection.written - before  # a pull writes its answer itself
        encoded = encode_frame(answer)
        out.append(encoded)
        return len(encoded)
