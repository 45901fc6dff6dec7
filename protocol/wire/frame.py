"""The remoting frame: `length, codec byte, header length (24 bit), header, body`.

The length counts all that follows it. A frame with impossible lengths is refused by its first eight
bytes, before anything is buffered for it.
"""

import struct
from typing import Final

from aerobee.protocol.wire.codecs import ENCODERS, ProtocolError
from aerobee.protocol.wire.command import Command

FRAME_SIZE_MAX: Final = 16_777_216
_LENGTHS: Final = struct.Struct(">iI")
_MARK_MAX: Final = 0x2FFFFFF  # codec 2 is the last, with the longest header
_HTTP_STARTS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"PRI ")

RawFrame = tuple[int, bytes, bytes]  # codec, header, body


class FrameDecoder:
    """Splits a stream of bytes, fed in arbitrary pieces, into frames."""

    __slots__ = ("_buffer", "_wanted", "error", "frame_size_max")

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self.frame_size_max = frame_size_max
        self.error: ProtocolError | None = None
        self._buffer = bytearray()
        self._wanted = 8  # no frame is complete before the buffer holds this many bytes

    @property
    def pending(self) -> int:
        """How many bytes of an incomplete frame are buffered."""
        return len(self._buffer)

    @property
    def header_missing(self) -> bool:
        """Whether a frame has started whose header is not complete yet."""
        waiting = len(self._buffer)
        if not waiting:
            return False
        return waiting < 8 or waiting < 8 + int.from_bytes(self._buffer[5:8], "big")

    def feed(self, data: bytes) -> list[RawFrame]:
        """The frames that `data` completes. After a bad one `error` is set; no more come."""
        frames: list[RawFrame] = []
        if self.error is not None:
            return frames
        if self._buffer:
            if len(self._buffer) + len(data) < self._wanted:
                self._buffer += data
                return frames
            data = b"".join((self._buffer, data))
            self._buffer.clear()
        position = 0
        size = len(data)
        length_max = self.frame_size_max - 4
        self._wanted = 8
        unpack = _LENGTHS.unpack_from
        while size - position >= 8:
            length, mark = unpack(data, position)
            start = position + 8
            header_end = start + (mark & 0xFFFFFF)
            end = position + 4 + length
            if header_end > end or not 4 <= length <= length_max or mark > _MARK_MAX:
                self.error = self._explain(data[position : position + 4], length, mark)
                return frames
            if end > size:
                self._wanted = end - position
                break
            frames.append((mark >> 24, data[start:header_end], data[header_end:end]))
            position = end
        if position < size:
            self._buffer += data[position:] if position else data
        return frames

    def _explain(self, start: bytes, length: int, mark: int) -> ProtocolError:
        if start[:2] == b"\x16\x03":
            return ProtocolError(
                "the client begins a TLS handshake, but TLS is not spoken here; switch it off there"
            )
        if start in _HTTP_STARTS:
            return ProtocolError(
                "the client speaks HTTP, but this port speaks RocketMQ's remoting protocol"
            )
        if 4 <= length <= self.frame_size_max - 4 and mark > _MARK_MAX:
            return ProtocolError(f"header form {mark >> 24} is unknown; 0, 1 and 2 are known")
        return ProtocolError(
            f"frame of {length} bytes with a header of {mark & 0xFFFFFF}; "
            f"a frame takes 8 to {self.frame_size_max} bytes"
        )


def frame_sizes(start: bytes) -> tuple[int, int, int]:
    """Codec, size of the header and size of the body, by a frame's first eight bytes."""
    length, mark = _LENGTHS.unpack(start)
    header_size = mark & 0xFFFFFF
    return mark >> 24, header_size, length - 4 - header_size


def frame_lengths(codec: int, header_length: int, body_length: int) -> bytes:
    """The first eight bytes of a frame."""
    return _LENGTHS.pack(4 + header_length + body_length, codec << 24 | header_length)


def encode_frame_head(command: Command, body_length: int) -> bytes:
    """Everything of the frame but its body."""
    header = ENCODERS[command.codec](command)
    return frame_lengths(command.codec, len(header), body_length) + header


def encode_frame(command: Command) -> bytes:
    """The whole frame."""
    return encode_frame_head(command, len(command.body)) + command.body
