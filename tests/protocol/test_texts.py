"""Properties, Java's hash, RocketMQ's JSON and the ext fields of requests."""

import json
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol.files import properties
from aerobee.protocol.files.java_hash import index_hash, java_hash, tags_code
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import JsonError, MessageQueue
from aerobee.protocol.wire.headers import (
    HeaderError,
    PullRequest,
    SendRequest,
    decode_ext,
    decode_send_v2,
)

NAME = st.text(st.characters(min_codepoint=32, codec="utf-8"), min_size=1, max_size=20)


@given(st.dictionaries(NAME, NAME, max_size=8))
def test_properties_come_back_with_and_without_the_last_separator(pairs: dict[str, str]) -> None:
    text = properties.encode(pairs)
    assert properties.parse(text) == pairs
    assert properties.parse(text.removesuffix("\x02")) == pairs
    for name, value in pairs.items():
        assert properties.get(text, name) == value
        assert properties.get(text.removesuffix("\x02"), name) == value


@given(st.text("AX\x01\x02", max_size=30))
def test_one_property_is_read_as_all_are(text: str) -> None:
    """Of two with one name the last that has a value counts, as in Java's map."""
    for name in ("A", "AX", "XA"):
        assert properties.get(text, name) == properties.parse(text).get(name)


def test_a_property_is_not_found_inside_another_name() -> None:
    text = properties.encode({"XDELAY": "1", "DELAYX": "2"})
    assert properties.get(text, "DELAY") is None


def test_pairs_without_a_name_or_a_value_are_left_out() -> None:
    assert properties.parse("\x01v\x02n\x01\x02lonely\x02\x02a\x01b") == {"a": "b"}


@given(st.dictionaries(NAME, NAME, max_size=6), NAME, NAME)
def test_putting_replaces_and_removing_removes(
    pairs: dict[str, str], name: str, value: str
) -> None:
    text = properties.put(properties.encode(pairs), name, value)
    assert properties.parse(text) == pairs | {name: value}
    assert text.count(f"{name}\x01{value}\x02") >= 1
    rest = {key: item for key, item in pairs.items() if key != name}
    assert properties.parse(properties.remove(text, name)) == rest


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("TagA", 2598919), ("中文", 646394), ("null", 3392903), ("😀", 1772899)],
)
def test_hashes_are_those_of_java(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_a_hash_wraps_to_a_signed_number_and_the_least_one_becomes_index_zero() -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("x" * 100) == -1_838_432_736 or -(2**31) <= java_hash("x" * 100) < 2**31
    topic, key = "", "polygenelubricants"
    assert index_hash(topic, key) == abs(java_hash("#" + key))
    assert tags_code(None) == tags_code("") == 0


def widest_number(text: str) -> int:
    """The bits of the largest number on the way to the hash of a text."""
    bits = 0

    def look(frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal bits
        bits = max(bits, frame.f_locals.get("value", 0).bit_length())
        return look

    def enter(frame: FrameType, _event: str, _argument: object) -> Any:
        return look if frame.f_code is java_hash.__code__ else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        java_hash(text)
    finally:
        sys.settrace(before)
    return bits


def test_the_numbers_of_a_hash_do_not_grow_with_its_text() -> None:
    """Each step would cost more than the one before: a key of 200,000 characters took seconds."""
    assert 32 <= widest_number("k" * 500) < 512
    assert 32 <= widest_number("k" * 5000) < 512


def test_the_hash_of_a_long_text_is_that_of_its_characters_one_by_one() -> None:
    long = "order-0815" * 20
    value = 0
    for character in long:
        value = (value * 31 + ord(character)) & 0xFFFFFFFF
    assert java_hash(long) & 0xFFFFFFFF == value


def test_integer_and_object_keys_are_written_bare() -> None:
    queue = MessageQueue("t", "b", 0)
    assert fastjson.dumps({0: "a", 10: "b"}) == b'{0:"a",10:"b"}'
    assert fastjson.dumps({queue: 1}) == b'{{"brokerName":"b","queueId":0,"topic":"t"}:1}'


def test_bare_keys_are_read() -> None:
    assert fastjson.loads(b'{0:"a",1:"b"}') == {0: "a", 1: "b"}
    assert fastjson.loads('{{"topic":"t","queueId":3,"brokerName":"b"}:{"x":1},}') == {
        MessageQueue("t", "b", 3): {"x": 1}
    }


def test_single_quotes_bare_names_and_stray_commas_are_read() -> None:
    assert fastjson.loads("{'a':1,,b:[1,2,],}") == {"a": 1, "b": [1, 2]}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"a":"x\\ud800y"}', "x\ufffdy"),
        (b"{'a':'\\udc00'}", "\ufffd"),
        (b"{'a':'\\ud83d\\ude00'}", "\U0001f600"),
        (b'{"a":"\\ud83d\\ude00","b":{"$ref":"$.a"}}', "\U0001f600"),
    ],
)
def test_half_a_character_becomes_one_that_can_be_written(body: bytes, text: str) -> None:
    value = fastjson.loads(body)
    assert value["a"] == text
    assert fastjson.loads(fastjson.dumps(value)) == value


def test_a_reference_stands_for_the_object_it_names() -> None:
    assert fastjson.loads('{"a":{"x":1},"b":{"$ref":"$.a"}}') == {"a": {"x": 1}, "b": {"x": 1}}


def test_references_cannot_make_a_huge_value_of_a_small_body() -> None:
    """It would be written at the next save of a topic's configuration, say."""

    def body(count: int) -> str:
        marks = ",".join(['{"$ref":"$.a"}'] * count)
        return '{"a":["' + "x" * (1 << 20) + '"],"b":[' + marks + "]}"

    assert len(fastjson.dumps(fastjson.loads(body(8)))) > 8 << 20
    with pytest.raises(JsonError, match="references"):
        fastjson.loads(body(20))


def test_a_large_request_must_be_standard_json() -> None:
    size = fastjson.TOLERANT_MAX
    text = '"' + "x\\n" * (size // 3) + '"'
    assert fastjson.loads_request("{a:1,'b':0}") == {"a": 1, "b": 0}
    assert fastjson.loads_request('{"a":' + text + "}")["a"].startswith("x\n")
    with pytest.raises(JsonError, match="no standard JSON"):
        fastjson.loads_request("{a:" + text + "}")
    assert fastjson.loads("{a:" + text + "}") == fastjson.loads('{"a":' + text + "}")


JSON_VALUES = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | NAME,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAME, inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_plain_json_is_read_as_json_reads_it(value: object) -> None:
    assert fastjson.loads(json.dumps(value)) == value
    assert fastjson.loads(fastjson.dumps(value)) == value


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_no_body_raises_anything_but_a_json_error(data: str | bytes) -> None:
    try:
        fastjson.loads(data)
    except JsonError as error:
        assert str(error)


@pytest.mark.parametrize("body", ["{" * 100_000, "[" * 100_000, '{"a":' * 50_000, "{0:" * 50_000])
def test_a_deep_body_is_an_error_and_not_a_crash(body: str) -> None:
    with pytest.raises(JsonError):
        fastjson.loads(body)


LETTERS = {
    "a": "pg",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "1",
    "g": "1700000000000",
    "h": "9",
    "i": "KEYS\x01k\x02",
    "j": "2",
    "k": "true",
    "l": "16",
    "m": "TRUE",
    "n": "broker-a",
}


def test_one_letter_and_long_names_mean_the_same() -> None:
    fields = decode_send_v2(LETTERS)
    assert fields == SendRequest(
        "T", 3, "pg", "TBW102", 4, 1, 1700000000000, 9, "KEYS\x01k\x02", 2, True, 16, True
    )
    assert (
        decode_ext({"producerGroup": "pg", "topic": "T", "queueId": "3"}, SendRequest).topic == "T"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("1", True), ("false", False), ("yes", False), ("", False)],
)
def test_a_boolean_is_true_by_its_name_in_any_case(text: str, value: bool) -> None:
    assert decode_send_v2(LETTERS | {"m": text}).batch is value


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("queueId", "x"),
        ("queueId", ""),
        ("queueId", "1.5"),
        ("queueId", "2147483648"),
        ("queueId", "-2147483649"),
        ("queueOffset", "9223372036854775808"),
        ("maxMsgNums", "9" * 5000),
        ("sysFlag", "NaN"),
    ],
)
def test_a_wrong_field_is_named(field: str, text: str) -> None:
    ext = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "0",
    }
    assert decode_ext(ext, PullRequest).max_msg_nums == 32
    with pytest.raises(HeaderError, match=field):
        decode_ext(ext | {field: text}, PullRequest)
    del ext[field]
    with pytest.raises(HeaderError, match=field):
        decode_ext(ext, PullRequest)
