"""The answers to sends and pulls: their fields, named once, and templates of the encoded forms.

A template gives the same bytes as the general encoder, from which it is made, without building a
Command for each answer.
"""

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

from aerobee.protocol.files import properties
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import JSON, MSGPACK, RESPONSE_FLAG, ROCKETMQ, Command
from aerobee.protocol.wire.frame import encode_frame, encode_frame_head, frame_lengths

FOUND: Final = "FOUND"
_FORMS_MAX: Final = 4096  # clients choose how long a unique key is
_FILLER: Final = "~"
_NO_FORM: Final = (0, 0, b"")

# The first bytes of a JSON frame without a body, by the length of its header.
LENGTH_PREFIXES: Final = tuple(frame_lengths(JSON, size, 0) for size in range(4096))
to_json: Final = msgspec.json.Encoder().encode

# Where the opaque is in a frame, after eight bytes of lengths, and how it is encoded.
_OPAQUE: Final[dict[int, tuple[int, Callable[[int], bytes]]]] = {
    ROCKETMQ: (8 + 5, struct.Struct(">i").pack),
    MSGPACK: (8 + 3, msgspec.msgpack.Encoder().encode),
}


def pull_fields(
    next_offset: int, min_offset: int, max_offset: int, broker_id: int = 0
) -> dict[str, str]:
    """The ext fields of the answer to a pull that is not refused; `broker_id`: where to pull
    next."""
    return {
        "maxOffset": str(max_offset),
        "minOffset": str(min_offset),
        "nextBeginOffset": str(next_offset),
        "suggestWhichBrokerId": str(broker_id),
    }


class SendAnswers:
    """The answers to sends. `fixed` are the ext fields of all, of refusals too."""

    def __init__(self, region: str, trace_on: bool) -> None:
        self.fixed = {
            properties.MSG_REGION: region,
            properties.TRACE_ON: "true" if trace_on else "false",
        }
        self._templates: dict[bytes, bytes] = {}  # for JSON, by the head of the message id
        self._batch_template = b""  # for JSON, without a unique key
        # For the other codecs, by what decides the lengths inside: the least queue offset that the
        # template is for, the first that is too long for it, and the template.
        self._forms: dict[tuple[int, bytes, int, int, int], tuple[int, int, bytes]] = {}

    def fields(
        self, message_id: str, queue_id: str, queue_offset: str, unique_key: str | None
    ) -> dict[str, str]:
        """The ext fields of the answer to a stored message. A batch has a unique key only
        if its request has one; a single message always has."""
        fields = self.fixed | {
            "msgId": message_id,
            "queueId": queue_id,
            "queueOffset": queue_offset,
        }
        if unique_key is not None:
            fields["transactionId"] = unique_key
        return fields

    def json_template(self, id_head: bytes) -> bytes:
        """The header for message ids that begin so. To be filled in: physical offset, queue id,
        queue offset, unique key as JSON, opaque."""
        template = self._templates.get(id_head)
        if template is None:
            template = self._templates[id_head] = self._json(b'"%b%%016X"' % id_head, b"%b")
        return template

    def _json(self, message_id: bytes, key: bytes | None) -> bytes:
        """The header with these forms; None: without a key."""
        marks = "\ue000\ue001\ue002\ue003"  # for private use: no setting holds them
        fields = self.fields(marks[0], marks[1], marks[2], marks[3] if key else None)
        command = Command(ResponseCode.SUCCESS, fields, flag=RESPONSE_FLAG)
        template = encode_frame(command)[8:].replace(b"%", b"%%")
        for mark, form in zip(marks, (message_id, b'"%d"', b'"%d"', key or b""), strict=True):
            template = template.replace(to_json(mark), form)
        return template.replace(b'"opaque":0,', b'"opaque":%d,')

    def stored(
        self,
        codec: int,
        opaque: int,
        id_head: bytes,
        physical_offset: int,
        queue_id: int,
        queue_offset: int,
        unique_key: str,
    ) -> bytes:
        """The answer to a message that is stored as requested and need not wait; `id_head` is the
        store host in hexadecimal, with which the message's id begins."""
        if codec == JSON:
            values = physical_offset, queue_id, queue_offset, to_json(unique_key), opaque
            header = self.json_template(id_head) % values
            return frame_lengths(JSON, len(header), 0) + header
        number, key = _OPAQUE[codec][1](opaque), unique_key.encode()
        form = codec, id_head, queue_id, len(number), len(key)
        low, high, template = self._forms.get(form, _NO_FORM)
        if not low <= queue_offset < high:
            digits = len(str(queue_offset))
            low, high = 10 ** (digits - 1) if digits > 1 else 0, 10**digits
            sizes = len(id_head) + 16, digits, len(key)
            template = self._template(codec, opaque, id_head, str(queue_id), sizes)
            if len(self._forms) >= _FORMS_MAX:
                self._forms.clear()
            self._forms[form] = low, high, template
        return template % (number, physical_offset, queue_offset, key)

    def stored_batch(
        self,
        codec: int,
        opaque: int,
        message_ids: bytes,
        queue_id: int,
        queue_offset: int,
        unique_key: str | None,
    ) -> bytes:
        """The answer to a batch that is stored as requested and need not wait."""
        if codec == JSON and unique_key is None:
            if not self._batch_template:
                self._batch_template = self._json(b'"%b"', None)
            header = self._batch_template % (message_ids, queue_id, queue_offset, opaque)
            return frame_lengths(JSON, len(header), 0) + header
        fields = self.fields(
            message_ids.decode("ascii"), str(queue_id), str(queue_offset), unique_key
        )
        answer = Command(ResponseCode.SUCCESS, fields, opaque=opaque, flag=RESPONSE_FLAG)
        answer.codec = codec
        return encode_frame(answer)

    def form(
        self, id_head: bytes, codec: int, opaque: int, queue_id: int, queue_offset: int, key: int
    ) -> tuple[bytes, ...]:
        """The pieces between opaque, physical offset, queue offset and unique key for all values
        that are as long as these; `key`: how long. For the other codecs."""
        sizes = len(id_head) + 16, len(str(queue_offset)), key
        return pieces_of(self._template(codec, opaque, id_head, str(queue_id), sizes))

    def _template(
        self, codec: int, opaque: int, id_head: bytes, queue_id: str, sizes: tuple[int, int, int]
    ) -> bytes:
        """The frame for values of these sizes. To be filled in: opaque, physical offset, queue
        offset, unique key."""
        message_id, queue_offset, key = (_FILLER * size for size in sizes)
        fields = self.fields(message_id, queue_id, queue_offset, key)
        frame = encode_frame(
            Command(ResponseCode.SUCCESS, fields, opaque=opaque, flag=RESPONSE_FLAG, codec=codec)
        )
        place, write = _OPAQUE[codec]
        begin, end = place + len(write(opaque)), len(frame)
        between = []
        before = end
        names = b"transactionId", b"queueOffset", b"msgId"
        # Backwards, each found by the name that follows it: a length may look like the filler.
        for name, size in zip(names, reversed(sizes), strict=True):
            at = frame.rindex(_FILLER.encode() * size, 0, before)
            between.append(frame[at + size : end])
            end, before = at, frame.rindex(name, 0, at)
        after_key, after_offset, after_id = between
        pieces = frame[:place], frame[begin:end], after_id, after_offset, after_key
        start, one, two, three, four = (piece.replace(b"%", b"%%") for piece in pieces)
        return b"".join((start, b"%b", one, id_head, b"%016X", two, b"%d", three, b"%b", four))


_TO_FILL: Final = re.compile(rb"%(?:%|016X|d|b)")


def pieces_of(template: bytes) -> tuple[bytes, ...]:
    """The texts between the places of a template that are filled in."""
    pieces, begin = [b""], 0
    for found in _TO_FILL.finditer(template):
        pieces[-1] += template[begin : found.start()]
        begin = found.end()
        if found[0] == b"%%":
            pieces[-1] += b"%"
        else:
            pieces.append(b"")
    pieces[-1] += template[begin:]
    return tuple(pieces)


_FOUND_JSON: Final = (
    encode_frame(Command(ResponseCode.SUCCESS, pull_fields(1, 2, 3), b"", 0, RESPONSE_FLAG, FOUND))[
        8:
    ]
    .replace(b'"nextBeginOffset":"1"', b'"nextBeginOffset":"%d"')
    .replace(b'"minOffset":"2"', b'"minOffset":"%d"')
    .replace(b'"maxOffset":"3"', b'"maxOffset":"%d"')
    .replace(b'"opaque":0,', b'"opaque":%d,')
)


# The texts between the end of the queue, its beginning, the next offset and the opaque.
FOUND_PIECES: Final = pieces_of(_FOUND_JSON)


def found_head(
    codec: int,
    opaque: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    body_size: int,
    broker_id: int = 0,
) -> bytes:
    """All but the body of a pull's answer with messages."""
    if codec == JSON and not broker_id:  # whose encoder writes names in the alphabet's order
        header = _FOUND_JSON % (max_offset, min_offset, next_offset, opaque)
        return frame_lengths(JSON, len(header), body_size) + header
    if codec == JSON or broker_id:
        fields = pull_fields(next_offset, min_offset, max_offset, broker_id)
        return encode_frame_head(_found(codec, opaque, fields), body_size)
    values = _OPAQUE[codec][1](opaque), b"%d" % max_offset, b"%d" % min_offset, b"%d" % next_offset
    header = _found_form(codec, *map(len, values)) % values
    return frame_lengths(codec, len(header), body_size) + header


def _found(codec: int, opaque: int, fields: dict[str, str]) -> Command:
    return Command(ResponseCode.SUCCESS, fields, b"", opaque, RESPONSE_FLAG, FOUND, codec=codec)


@lru_cache(maxsize=_FORMS_MAX)
def _found_form(codec: int, opaque: int, high: int, low: int, after: int) -> bytes:
    """The header for values of these sizes. To be filled in: opaque, end, beginning, next."""
    number = next(
        each for each in (0, 1 << 7, 1 << 8, 1 << 16) if len(_OPAQUE[codec][1](each)) == opaque
    )
    fields = pull_fields(*(10 ** (size - 1) for size in (after, low, high)))
    header = encode_frame_head(_found(codec, number, fields), 0)[8:]
    place = _OPAQUE[codec][0] - 8
    pieces = [header[:place].replace(b"%", b"%%"), b"%b"]
    end = place + opaque
    for name, size in ((b"maxOffset", high), (b"minOffset", low), (b"nextBeginOffset", after)):
        at = header.index(name, end) + len(name) + (4 if codec == ROCKETMQ else 1)
        pieces += header[end:at].replace(b"%", b"%%"), b"%b"
        end = at + size
    return b"".join((*pieces, header[end:].replace(b"%", b"%%")))


@lru_cache(maxsize=64)
def send_answers(region: str, trace_on: bool) -> SendAnswers:
    return SendAnswers(region, trace_on)
