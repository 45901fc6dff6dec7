"""The remoting frame: `length, codec byte, header length (24 bit), header, body`.

The length counts all that follows it. A frame is refused by its first eight bytes, before anything
is kept for it, when its lengths cannot be right.
"""

import struct
from typing import Final

from aerobee.protocol.codecs import DECODERS, ENCODERS, ProtocolError
from aerobee.protocol.command import Command

FRAME_SIZE_MAX: Final = 16_777_216
_LENGTHS: Final = struct.Struct(">iI")
_HTTP_STARTS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"PRI ")

RawFrame = tuple[int, bytes, bytes]  # codec, header, body


class FrameDecoder:
    """Cuts a stream of bytes, fed in any slices, into frames."""

    __slots__ = ("_buffer", "_wanted", "error", "frame_size_max")

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self.frame_size_max = frame_size_max
        self.error: ProtocolError | None = None
        self._buffer = bytearray()
        self._wanted = 8  # no frame can be cut before the buffer holds this many bytes

    @property
    def pending(self) -> int:
        """How many bytes of an unfinished frame are waiting."""
        return len(self._buffer)

    @property
    def header_missing(self) -> bool:
        """Whether a frame has begun of which not even the header is whole."""
        waiting = len(self._buffer)
        if not waiting:
            return False
        return waiting < 8 or waiting < 8 + int.from_bytes(self._buffer[5:8], "big")

    def feed(self, data: bytes) -> list[RawFrame]:
        """The frames that `data` completes. After a bad one `error` is set; no more come."""
        if self.error is not None:
            return []
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        frames: list[RawFrame] = []
        position = 0
        size = len(data)
        self._wanted = 8
        unpack = _LENGTHS.unpack_from
        while size - position >= 8:
            length, mark = unpack(data, position)
            header_start = position + 8
            header_end = header_start + (mark & 0xFFFFFF)
            end = position + 4 + length
            if not 4 <= length <= self.frame_size_max - 4 or header_end > end:
                self.error = self._explain(data, position, length, mark & 0xFFFFFF)
                return frames
            codec = mark >> 24
            if codec not in DECODERS:
                self.error = ProtocolError(f"header form {codec} is unknown; 0, 1 and 2 are known")
                return frames
            if end > size:
                self._wanted = end - position
                break
            frames.append((codec, data[header_start:header_end], data[header_end:end]))
            position = end
        if position < size:
            self._buffer += data[position:] if position else data
        return frames

    def _explain(
        self, data: bytes, position: int, length: int, header_length: int
    ) -> ProtocolError:
        start = data[position : position + 4]
        if start[:2] == b"\x16\x03":
            return ProtocolError(
                "the client begins a TLS handshake, but TLS is not spoken here; switch it off there"
            )
        if start in _HTTP_STARTS:
            return ProtocolError(
                "the client speaks HTTP, but this port speaks RocketMQ's remoting protocol"
            )
        return ProtocolError(
            f"frame of {length} bytes with a header of {header_length}; "
            f"a frame takes 8 to {self.frame_size_max} bytes"
        )


def encode_frame_head(command: Command, body_length: int) -> bytes:
    """Everything of the frame but its body."""
    header = ENCODERS[command.codec](command)
    mark = command.codec << 24 | len(header)
    return _LENGTHS.pack(4 + len(header) + body_length, mark) + header


def encode_frame(command: Command) -> bytes:
    """The whole frame."""
    return encode_frame_head(command, len(command.body)) + command.body
