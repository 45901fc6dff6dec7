"""Frames cut from a stream in any slices, in all three codecs, and what is refused."""

import json
import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol.wire.codecs import EXT_FIELDS_MAX, ProtocolError, decode_command
from aerobee.protocol.wire.command import JSON, LANGUAGES, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame, encode_frame_head

INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    codec = draw(st.sampled_from([JSON, ROCKETMQ, MSGPACK]))
    short = st.integers(-(2**15), 2**15 - 1)
    ext = draw(st.dictionaries(TEXT, TEXT, max_size=8))
    remark = draw(st.none() | TEXT)
    if codec == ROCKETMQ:  # a zero-length value and a zero-length remark are nulls there
        ext = {name: value for name, value in ext.items() if value}
        remark = remark or None
    return Command(
        draw(short if codec == ROCKETMQ else INT32),
        ext,
        draw(st.binary(max_size=300)),
        draw(INT32),
        draw(INT32),
        remark,
        draw(st.sampled_from(LANGUAGES)),
        draw(short if codec == ROCKETMQ else INT32),
        codec,
    )


@given(st.lists(commands(), max_size=5), st.lists(st.integers(1, 200), max_size=20))
def test_every_command_comes_back_whatever_the_slices(
    sent: list[Command], sizes: list[int]
) -> None:
    stream = b"".join(encode_frame(command) for command in sent)
    decoder = FrameDecoder()
    received: list[Command] = []
    position = 0
    for size in [*sizes, len(stream)]:
        for codec, header, body in decoder.feed(stream[position : position + size]):
            received.append(decode_command(codec, header, body))
        position += size
    assert received == sent
    assert decoder.pending == 0 and decoder.error is None


@given(commands())
def test_a_frame_fed_byte_by_byte_comes_out_with_its_last_byte(sent: Command) -> None:
    frame = encode_frame(sent)
    decoder = FrameDecoder()
    for byte in frame[:-1]:
        assert decoder.feed(bytes([byte])) == []
    [(codec, header, body)] = decoder.feed(frame[-1:])
    assert decode_command(codec, header, body) == sent


def test_the_json_example_of_the_format_has_these_bytes() -> None:
    header = (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":401}'
    )
    request = Command(105, {"topic": "T"}, opaque=7, language="JAVA", version=401)
    assert encode_frame(request) == bytes.fromhex("0000007f0000007b") + header


def test_the_binary_example_of_the_format_has_these_bytes() -> None:
    request = Command(105, {"topic": "T"}, opaque=7, language="JAVA", version=401, codec=ROCKETMQ)
    assert encode_frame(request) == bytes.fromhex(
        "000000250100002100690001910000000700000000000000000000000c0005746f7069630000000154"
    )


def test_a_head_and_a_body_written_apart_are_the_frame() -> None:
    command = Command(0, {"a": "b"}, b"body")
    assert encode_frame_head(command, 4) + b"body" == encode_frame(command)


@pytest.mark.parametrize(
    "start",
    [
        struct.pack(">iI", 3, 0),  # shorter than its own header length word
        struct.pack(">iI", 0, 0),
        struct.pack(">iI", -1, 0),
        struct.pack(">iI", 2**31 - 1, 10),
        struct.pack(">iI", 16_777_213, 10),  # with its length word over the limit
        struct.pack(">iI", 20, 17),  # a header that is longer than its frame
        struct.pack(">iI", 100, 3 << 24 | 10),  # an unknown header form
        struct.pack(">iI", 100, 255 << 24 | 10),
    ],
)
def test_a_bad_frame_is_refused_by_its_first_eight_bytes(start: bytes) -> None:
    decoder = FrameDecoder()
    good = encode_frame(Command(1))
    assert len(decoder.feed(good + start)) == 1
    assert isinstance(decoder.error, ProtocolError)
    assert decoder.pending == 0
    assert decoder.feed(good) == []


def test_a_frame_of_just_the_largest_size_is_taken() -> None:
    command = Command(1, codec=JSON)
    head = encode_frame(command)
    limit = len(head) + 100
    decoder = FrameDecoder(limit)
    assert len(decoder.feed(encode_frame(Command(1, body=bytes(100))))) == 1
    assert decoder.feed(encode_frame(Command(1, body=bytes(101)))) == []
    assert decoder.error is not None and str(limit) in str(decoder.error)


def test_claims_allocate_nothing() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(struct.pack(">iI", 16_000_000, 100)) == []
    assert decoder.pending == 8


def test_a_tls_handshake_is_named_as_such() -> None:
    decoder = FrameDecoder()
    decoder.feed(bytes.fromhex("160301020001000001fc0303"))
    assert "TLS" in str(decoder.error)


def test_an_http_request_is_named_as_such() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert "HTTP" in str(decoder.error)


def test_the_decoder_tells_whether_the_header_is_whole() -> None:
    frame = encode_frame(Command(1, {"a": "b"}, b"0123456789"))
    header_end = len(frame) - 10
    decoder = FrameDecoder()
    assert not decoder.header_missing
    decoder.feed(frame[:5])
    assert decoder.header_missing
    decoder.feed(frame[5 : header_end - 1])
    assert decoder.header_missing
    decoder.feed(frame[header_end - 1 : header_end + 3])
    assert not decoder.header_missing and decoder.pending
    decoder.feed(frame[header_end + 3 :])
    assert not decoder.header_missing and not decoder.pending


def json_header(text: str) -> Command:
    return decode_command(JSON, text.encode())


def test_numbers_booleans_and_null_in_ext_fields_are_taken_as_text() -> None:
    command = json_header(
        '{"code":10,"extFields":{"queueId":0,"unitMode":false,"big":12345678901234567890,'
        '"half":1.5,"none":null,"text":"x"},"opaque":1}'
    )
    assert command.ext == {
        "queueId": "0",
        "unitMode": "false",
        "big": "12345678901234567890",
        "half": "1.5",
        "text": "x",
    }


def test_a_header_may_leave_out_all_but_the_code_and_hold_what_nobody_knows() -> None:
    command = json_header('{"code":34,"unknown":[1,{"a":2}],"extFields":null,"remark":null}')
    assert (command.code, command.ext, command.remark, command.language) == (34, {}, None, "OTHER")


def test_fields_of_other_types_are_read_as_their_text() -> None:
    """As fastjson reads them; in MessagePack as in JSON."""
    values = {"a": 1, "b": True, "c": None, "d": [1, "x"], "e": {"f": 2.5}}
    texts = {"a": "1", "b": "true", "d": '[1,"x"]', "e": '{"f":2.5}'}
    header = json.dumps({"code": "1", "opaque": "-7", "extFields": values}).encode()
    command = decode_command(JSON, header)
    assert (command.code, command.opaque, command.ext) == (1, -7, texts)
    packed = decode_command(MSGPACK, msgpack.packb((1, "0", -7, 0, 0, None, values)))
    assert (packed.code, packed.flag, packed.opaque, packed.ext) == (1, 0, -7, texts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"code":1.5}',
        '{"code":NaN}',
        '{"code":1,"extFields":[]}',
        '{"code":1',
        '{"code":1}}',
        '{"code":99999999999999999999}',
        '{"code":2147483648}',
        '{"code":1,"opaque":-2147483649}',
        '{"code":1,"remark":"\\ud800"}',
        '{"code":1,"x":' + "[" * 100_000 + "}",
        '{"code":' + "1" * 5_000 + "}",
        json.dumps(
            {"code": 1, "extFields": dict.fromkeys(map(str, range(EXT_FIELDS_MAX + 1)), "x")}
        ),
    ],
)
def test_a_json_header_that_is_not_sound_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        json_header(text)


def test_a_json_header_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_command(JSON, b'{"code":1,"remark":"\xff\xfe"}')


BINARY_START = struct.pack(">hBhii", 10, 0, 401, 7, 0)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        BINARY_START,
        BINARY_START + struct.pack(">i", -1),
        BINARY_START + struct.pack(">i", 100),
        BINARY_START + struct.pack(">ii", 0, -1),
        BINARY_START + struct.pack(">ii", 0, 1),
        BINARY_START + struct.pack(">iih", 0, 2, 5),
        BINARY_START + struct.pack(">iihi", 0, 6, -1, 0),
        BINARY_START + struct.pack(">iih1si", 0, 7, 1, b"a", 2**31 - 1),
        BINARY_START + struct.pack(">iih1si", 0, 7, 1, b"a", -5),
        BINARY_START + struct.pack(">ii", 2, 0)[:4] + b"\xff\xff" + struct.pack(">i", 0),
    ],
)
def test_a_binary_header_whose_lengths_lie_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(ROCKETMQ, header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc0",
        b"\x97\x01",
        b"\x93\x01\x02\x03",
        bytes.fromhex("97010000000300") + b"\xc0\x80",  # eight for seven
        b"\x97\xa1x\x00\x00\x00\x00\xc0\x80",  # the code is a text
        b"\x97\x01\x00\x00\x00\x00\x01\x80",  # the remark is a number
        b"\x97\x01\x00\x00\x00\x00\xc0\x90",  # the ext is a list
        b"\x97\xcf" + b"\xff" * 8 + b"\x00\x00\x00\x00\xc0\x80",
        b"\x91" * 5000,
    ],
)
def test_a_messagepack_header_that_is_not_sound_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(MSGPACK, header)


@given(st.sampled_from([JSON, ROCKETMQ, MSGPACK]), st.binary(max_size=200))
def test_no_header_bytes_raise_anything_but_a_protocol_error(codec: int, header: bytes) -> None:
    try:
        decode_command(codec, header)
    except ProtocolError as error:
        assert str(error)


@pytest.mark.parametrize("codec", [3, 9, 255])
def test_a_header_in_an_unknown_form_is_a_protocol_error(codec: int) -> None:
    with pytest.raises(ProtocolError, match=f"header form {codec} is unknown"):
        decode_command(codec, b"{}")
