"""The hot path's decoders and templates say exactly what the general codec says."""

import random
import struct
from itertools import product

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from peers.in_process import pull_ext, send_ext

from aerobee.broker.fast.hot_codecs import (
    PULL,
    SEND,
    UNUSUAL,
    BinarySends,
    SendFields,
    heads_by_codec,
)
from aerobee.broker.net.answers import SendAnswers, found_head
from aerobee.protocol.files import properties
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame
from aerobee.protocol.wire.headers import PullRequest, decode_ext, decode_send_v2

CODECS = [JSON, ROCKETMQ, MSGPACK]
INT32 = st.integers(-(2**31), 2**31 - 1)


def header_of(command: Command) -> bytes:
    [(_, header, _)] = FrameDecoder().feed(encode_frame(command))
    return header


@settings(max_examples=examples(100, share=40))
@given(
    st.sampled_from(CODECS),
    INT32,
    st.sampled_from([b"7F00000100002A9F", b"20010DB8000000000000000000000001" + b"00002A9F"]),
    st.integers(0, 2**62),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
    st.sampled_from(["DefaultRegion", "100%d", "ü", "~"]),
    st.booleans(),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=300),
)
def test_a_send_answer_from_a_template_is_what_the_codec_would_write(
    codec: int,
    opaque: int,
    id_head: bytes,
    physical_offset: int,
    queue_id: int,
    queue_offset: int,
    region: str,
    trace_on: bool,
    key: str,
) -> None:
    answers = SendAnswers(region, trace_on)
    frame = answers.stored(codec, opaque, id_head, physical_offset, queue_id, queue_offset, key)
    ext = {
        "MSG_REGION": region,
        "TRACE_ON": "true" if trace_on else "false",
        "msgId": f"{id_head.decode()}{physical_offset:016X}",
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "transactionId": key,
    }
    assert frame == encode_frame(Command(0, ext, b"", opaque, 1, codec=codec))


@pytest.mark.parametrize("codec", CODECS)
def test_the_head_of_a_pull_answer_is_what_the_codec_would_write(codec: int) -> None:
    ext = {
        "maxOffset": "30",
        "minOffset": "2",
        "nextBeginOffset": "10",
        "suggestWhichBrokerId": "0",
    }
    expected = Command(0, ext, b"body", -7, 1, "FOUND", codec=codec)
    assert found_head(codec, -7, 10, 2, 30, 4) + b"body" == encode_frame(expected)
    for opaque, high, low, after in product(
        [0, -1, 127, 128, -33, 255, 256, 65535, 65536, -(2**31), 2**31 - 1],
        [0, 30, 31, 10**18],
        [0, 31, 100],
        [9, 10, 10**12],
    ):
        ext |= {"maxOffset": str(high), "minOffset": str(low), "nextBeginOffset": str(after)}
        expected = Command(0, ext, b"body", opaque, 1, "FOUND", codec=codec)
        assert found_head(codec, opaque, after, low, high, 4) + b"body" == encode_frame(expected)


@pytest.mark.parametrize("codec", CODECS)
def test_a_plain_send_is_decoded_in_one_step(codec: int) -> None:
    size, table = heads_by_codec()[codec]
    command = Command(310, send_ext("Orders", 3, h="9", j="2"), opaque=-5, codec=codec)
    header = header_of(command)
    kind, decode, code = table[header[:size]]
    frame = decode(header)
    assert (kind, code) == (SEND, 310) and (frame.opaque, frame.flag) == (-5, 0)
    general = decode_send_v2(command.ext)
    assert frame.extFields == SendFields(
        "Orders", 4, 3, 0, 1700000000000, 9, general.properties, 2, None, False
    )


@pytest.mark.parametrize("codec", [JSON, MSGPACK])
def test_a_pull_is_decoded_in_one_step(codec: int) -> None:
    size, table = heads_by_codec()[codec]
    command = Command(361, pull_ext("Orders", 3, 77), opaque=8, codec=codec)
    header = header_of(command)
    kind, decode, code = table[header[:size]]
    frame = decode(header)
    assert (kind, code) == (PULL, 361) and (frame.code, frame.opaque) == (361, 8)
    assert frame.extFields == decode_ext(command.ext, PullRequest)


def test_the_unusual_is_left_to_the_general_way() -> None:
    size, table = heads_by_codec()[JSON]
    for more in ({"e": "x"}, {"e": "99999999999"}, {"m": "perhaps"}, {"g": "1" * 30}):
        header = header_of(Command(310, send_ext("Orders", **more)))
        with pytest.raises(UNUSUAL):
            table[header[:size]][1](header)
    spaced = b'{ "code":310, "opaque":1}'
    assert spaced[:size] not in table


# --- the layouts of binary headers


def binary(opaque: int, **more: str) -> tuple[bytes, Command]:
    command = Command(310, send_ext("Orders") | more, opaque=opaque, codec=ROCKETMQ)
    return header_of(command), command


@given(st.data())
def test_learnt_layouts_read_every_header_as_the_general_way_does(data: st.DataObject) -> None:
    sends = BinarySends()
    digits = st.integers(0, 20).map(str)
    texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
    for _ in range(data.draw(st.integers(1, 12))):
        more = {
            "e": data.draw(digits),
            "f": data.draw(digits),
            "g": data.draw(st.integers(0, 10**15).map(str)),
            "i": data.draw(texts),
            "b": data.draw(texts),
        }
        header, command = binary(data.draw(INT32), **more)
        frame = sends.decode(header)
        general = decode_send_v2(command.ext)
        assert frame is not None and frame.opaque == command.opaque
        fields = frame.extFields
        assert (fields.b, fields.e, fields.f, fields.g, fields.i) == (
            general.topic,
            general.queue_id,
            general.sys_flag,
            general.born_timestamp,
            general.properties,
        )


def test_a_layout_is_used_again_for_headers_that_differ_in_the_usual_fields() -> None:
    sends = BinarySends()
    for number in range(50):
        text = properties.encode({"KEYS": f"{number:05d}"})
        frame = sends.decode(binary(number, e=str(number % 4), i=text)[0])
        assert frame is not None and frame.extFields.i == text
    assert sends._misses == 1


def test_topics_of_one_length_have_a_layout_each() -> None:
    sends = BinarySends()
    for number in range(100):
        frame = sends.decode(binary(number, b=f"Topic{number % 5}")[0])
        assert frame is not None and frame.extFields.b == f"Topic{number % 5}"
    assert sends._misses == 5


def test_damage_inside_a_learnt_layout_is_seen() -> None:
    sends = BinarySends()
    header, _ = binary(1, e="3")
    sends.decode(header)
    at = header.index(b"\x00\x01e\x00\x00\x00\x01") + 7
    with pytest.raises(UNUSUAL):
        sends.decode(header[:at] + b"x" + header[at + 1 :])
    lied = bytearray(header)
    struct.pack_into(">i", lied, at - 4, 50)
    with pytest.raises(UNUSUAL):
        sends.decode(bytes(lied))


def test_headers_in_random_order_are_read_and_soon_not_learnt() -> None:
    sends = BinarySends()
    rng = random.Random(7)
    ext = list(send_ext("Orders").items())
    for number in range(300):
        rng.shuffle(ext)
        command = Command(310, dict(ext), opaque=number, codec=ROCKETMQ)
        frame = sends.decode(header_of(command))
        assert frame is not None and frame.extFields.b == "Orders"
    assert sum(map(len, sends._layouts.values())) <= BinarySends.LAYOUTS_MAX


def test_headers_of_many_lengths_take_a_bounded_memory() -> None:
    sends = BinarySends()
    for number in range(3000):
        sends.decode(binary(number, i="k" * (1 + number))[0])
    assert len(sends._layouts) <= BinarySends.LENGTHS_MAX
