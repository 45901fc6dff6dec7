"""Random requests as frames: sends, batches and pulls in all codecs, with all that clients vary."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgpack
from hypothesis import strategies as st

from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame, frame_lengths
from aerobee.protocol.wire.headers import SEND_V2_NAMES

NAMES = {long: short for short, long in SEND_V2_NAMES.items()}
OPAQUES = [0, 1, 100, 127, 250, 65000, 2**31 - 100, -(2**31), -40, -200]
TOPICS: list[str | None] = [
    "Second",
    "ReadOnly",
    "WriteOnly",
    "Ordered",
    "%RETRY%cg",
    "%RETRY%nobody",
    "TBW102",
]
TOPICS += ["SCHEDULE_TOPIC_XXXX", "no good!", "t" * 130, "", None]


class Asked:
    """One request: its frame, and the opaque of the answer that it wants, if it wants one."""

    def __init__(self, frame: bytes, opaque: int | None, shown: str) -> None:
        self.frame = frame
        self.opaque = opaque
        self.shown = shown

    def __repr__(self) -> str:
        return self.shown


# --- values


ODD_NUMBERS = [
    "+1",
    "01",
    "1_0",
    " 1",
    "1.0",
    "1e0",
    "-0",
    "x",
    "",
    "99999999999",
    1,
    -1,
    2.0,
    None,
]
SHORT_ODD_NUMBERS = [each for each in ODD_NUMBERS if each != "99999999999"]  # for what is waited
BOOLEANS = ["true", "TRUE", "1", "0", "no", "", True, False]
TEXT = st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02")
VALUES = ["v", "TagA", "TagB", "k1 k2", '"', "\\", "100%", "ü", "\U0001f41d", "\t", "~~", ""]
VALUES += ["TRACE_ON", "UNIQ_KEY", "DELAY", "WAIT", "false", "k" * 300, "u" * 5000]
PROPERTIES: dict[str, list[str]] = {
    "KEYS": VALUES,
    "TAGS": VALUES,
    "a": VALUES,
    "UNIQ_KEY": [*VALUES, "7F000001000018B4AAC2000000000001"],
    "MY_UNIQ_KEY": ["", "x"],
    "TRACE_ON": ["true", "no", ""],
    "CLUSTER": ["Mine", ""],
    "MYCLUSTER": ["x"],
    "MSG_REGION": ["x"],
    "POP_CK": ["x"],
    "WAIT": ["true", "false", "FALSE", ""],
    "XWAIT": ["true", "false"],
    "DELAY": ["0", "1", "-1", "x", "99", ""],
    "TIMER_DELAY_SEC": ["0", "60", "x", "999999999"],
    "TIMER_OUT_MS": ["5"],
    "TRAN_MSG": ["true", "false"],
    "__CRC32#": ["x"],
}
PAIRS = st.sampled_from(list(PROPERTIES)).flatmap(
    lambda name: st.tuples(
        st.just(name), st.sampled_from(PROPERTIES[name]) | st.text(TEXT, max_size=4)
    )
)
USUAL = "UNIQ_KEY\x017F000001000018B4AAC20000000000%02X\x02WAIT\x01true\x02TAGS\x01TagA"


@st.composite
def property_texts(draw: st.DrawFn) -> str:
    usual = USUAL % draw(st.integers(0, 255))
    kind = draw(st.integers(0, 4))
    if kind < 2:
        return usual + draw(st.sampled_from(["", "\x02"]))
    if kind < 4:
        pair = "\x01".join(draw(PAIRS))
        return draw(st.sampled_from([f"{usual}\x02{pair}", f"{pair}\x02{usual}\x02"]))
    pairs = draw(st.lists(PAIRS, max_size=4))
    text = draw(st.sampled_from(["\x02"] * 5 + ["\x02\x02"])).join(
        name + draw(st.sampled_from(["\x01"] * 9 + [""])) + value for name, value in pairs
    )
    text += draw(st.sampled_from(["", "\x02"]))
    return text


# --- headers


@st.composite
def frames(
    draw: st.DrawFn, codec: int, opaque: int, code: int, ext: dict[str, Any], body: bytes
) -> bytes:
    """The request in one of the codecs, its fields in one of many orders and forms."""
    ext = dict(ext)
    if draw(st.integers(0, 3)) == 0:
        ext |= draw(st.sampled_from([{"bname": "b"}, {"n": "b"}, {"ReqT": "1"}, {"i2": "\x02"}]))
    if draw(st.integers(0, 5)) == 0:
        ext = dict(draw(st.permutations(list(ext.items()))))
    flag = 2 if draw(st.integers(0, 9)) == 0 else 0
    language = draw(st.sampled_from(["JAVA", "GO", "CPP"]))
    if codec == JSON and draw(st.booleans()):
        return _loose_json(draw, code, ext, body, opaque, flag)
    if codec == MSGPACK and draw(st.booleans()):
        return framed(MSGPACK, msgpack.packb((code, flag, opaque, 0, 453, None, ext)), body)
    texts = {name: _text(value) for name, value in ext.items() if value is not None}
    version = draw(st.sampled_from([0, 100, 453]))
    command = Command(code, texts, body, opaque, flag, None, language, version, codec)
    return encode_frame(command)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _loose_json(
    draw: st.DrawFn, code: int, ext: dict[str, Any], body: bytes, opaque: int, flag: int
) -> bytes:
    """As other JSON writers do: bare numbers, other orders, spaces, missing fields."""
    rest = {"extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 453}
    if not flag and draw(st.booleans()):
        del rest["flag"]
    fields = {"code": code} | dict(draw(st.permutations(list(rest.items()))))
    if draw(st.integers(0, 9)) == 0:
        fields |= {"remark": None, "serializeTypeCurrentRPC": "JSON", "more": [1, {"a": None}]}
    separators = draw(st.sampled_from([(",", ":"), (",", ":"), (", ", ": ")]))
    header = json.dumps(fields, separators=separators, ensure_ascii=draw(st.booleans()))
    return framed(JSON, header.encode(), body)


def framed(codec: int, header: bytes, body: bytes) -> bytes:
    return frame_lengths(codec, len(header), len(body)) + header + body


# --- requests

# Field -> what most requests hold, and what a few hold instead.
SEND: dict[str, tuple[list[Any], list[Any]]] = {
    "producerGroup": (["pg"], [""]),
    "topic": (["Known", "Known", "Known", "Other", "First"], TOPICS),
    "defaultTopic": (["TBW102"], ["Nothing", ""]),
    "defaultTopicQueueNums": (["4"], ODD_NUMBERS),
    "queueId": (["0", "0", "1"], ["2", "3", "4", "9", "-1", *ODD_NUMBERS]),
    "sysFlag": (["0"], ["1", "2", "4", "8", "12", "16", "32", "64", "1024", *ODD_NUMBERS]),
    "bornTimestamp": (["1700000000000", "1700000000001"], ["0", "-1", *ODD_NUMBERS]),
    "flag": (["0", "7"], ["-1", *ODD_NUMBERS]),
    "reconsumeTimes": (["0"], ["3", "20", *ODD_NUMBERS]),
    "unitMode": (["false"], BOOLEANS),
    "maxReconsumeTimes": (["16"], ["2", *ODD_NUMBERS]),
    "batch": (["false"], BOOLEANS),
}
PULL: dict[str, tuple[list[Any], list[Any]]] = {
    "consumerGroup": (["cg"], ["cg2", "no good!", "Disabled", ""]),
    "topic": (["Known", "Known", "Other"], [*TOPICS, "Nowhere", "%RETRY%cg"]),
    "queueId": (["0", "0", "1"], ["3", "4", "-1", *ODD_NUMBERS]),
    "queueOffset": (["0", "0", "1", "3"], ["2", "5", "40", "-1", *ODD_NUMBERS]),
    "maxMsgNums": (["32"], ["1", "2", "0", "-1", "1000", *ODD_NUMBERS]),
    "sysFlag": (["4", "6", "7"], ["5", "0", "2", "20", *ODD_NUMBERS]),
    "commitOffset": (["0", "1"], ["5", *ODD_NUMBERS]),
    "suspendTimeoutMillis": (["25", "0"], ["1", "-5", *SHORT_ODD_NUMBERS]),
    "subscription": (["*"], ["", "TagA", "TagA || x", "a = 'v'", "(", None]),
    "subVersion": (["0"], ["5", *ODD_NUMBERS]),
    "expressionType": (["TAG"], ["SQL92", "what", None]),
    "maxMsgBytes": (["0"], ["200", "1", "-1", *ODD_NUMBERS]),
}
OPTIONAL = ["maxReconsumeTimes", "properties", "unitMode", "batch", "sysFlag", "flag", "queueId"]
OPTIONAL += ["maxMsgBytes", "expressionType", "subscription", "commitOffset", "subVersion"]


@st.composite
def fields(draw: st.DrawFn, table: dict[str, tuple[list[Any], list[Any]]]) -> dict[str, Any]:
    """Usual values but for a few fields, of which some may be missing."""
    ext = {name: draw(st.sampled_from(usual)) for name, (usual, _) in table.items()}
    if draw(st.integers(0, 2)) == 0:
        for name in draw(st.lists(st.sampled_from(list(table)), max_size=2)):
            ext[name] = draw(st.sampled_from(table[name][1]))
        for name in draw(st.lists(st.sampled_from(OPTIONAL), max_size=2)):
            ext.pop(name, None)
    return ext


@st.composite
def sends(draw: st.DrawFn, codec: int, opaque: int, topic: str = "") -> Asked:
    ext = draw(fields(SEND)) | {"properties": draw(property_texts())}
    if topic:
        ext["topic"] = topic
    if draw(st.integers(0, 99)) == 0:
        ext["properties"] += "z" * 33000
    body = draw(st.sampled_from([b"", b"body", b"body", b"\x00" * 100, b"x" * 1500, b"y" * 5000]))
    code = draw(st.sampled_from([310, 310, 310, 310, 10, 320]))
    if code == 320 and draw(st.integers(0, 9)):
        parts = draw(
            st.lists(st.tuples(st.just(3), st.just(b"part"), property_texts()), max_size=3)
        )
        ext["batch"], body = "true", encode_batch(parts)
    if code != 10:
        short = {NAMES[name]: value for name, value in ext.items()}
        ext = dict(sorted(short.items()))
    return _asked(draw, codec, opaque, code, ext, body)


@st.composite
def pulls(draw: st.DrawFn, codec: int, opaque: int) -> Asked:
    code = draw(st.sampled_from([11, 11, 361]))
    return _asked(draw, codec, opaque, code, draw(fields(PULL)), b"")


def _asked(
    draw: st.DrawFn, codec: int, opaque: int, code: int, ext: dict[str, Any], body: bytes
) -> Asked:
    frame = draw(frames(codec, opaque, code, ext, body))
    wants = opaque if not _is_oneway(frame) else None
    return Asked(frame, wants, f"{code} by {codec} {ext}"[:200])


def _is_oneway(frame: bytes) -> bool:
    [cut] = FrameDecoder().feed(frame)
    return decode_command(*cut).is_oneway


@st.composite
def bursts(draw: st.DrawFn) -> list[Asked]:
    """What arrives in one read. First sends to a topic are not mixed with pulls of it: whether
    these find it depends on the disk's speed."""
    first = draw(st.sampled_from(OPAQUES))
    of_known = partial(sends, topic="Known")
    choices: list[list[Callable[..., st.SearchStrategy[Asked]]]]
    choices = [[sends], [pulls], [pulls, of_known]]
    kinds = draw(st.sampled_from(choices))
    codecs = draw(st.sampled_from([[JSON], [ROCKETMQ], [MSGPACK], [JSON, ROCKETMQ, MSGPACK]]))
    requests = []
    for opaque in range(first, first + draw(st.integers(1, 12))):
        kind, codec = draw(st.sampled_from(kinds)), draw(st.sampled_from(codecs))
        requests.append(draw(kind(codec, opaque)))
    return requests


def usual_sends() -> list[Asked]:
    """The first ones to each queue that many others go to; from then on these are plain."""
    asked = []
    for number, topic in enumerate(("Known", "Other")):
        for queue_id in (0, 1):
            ext = {"b": topic, "e": str(queue_id), "f": "0", "g": "1700000000000"}
            opaque = 2 * number + queue_id
            frame = encode_frame(Command(310, ext, b"first", opaque))
            asked.append(Asked(frame, opaque, f"the first to {topic}/{queue_id}"))
    return asked


def each_odd_request(codec: int) -> list[list[Asked]]:
    """For every field its odd values and for every property its values, one at a time; each send
    is followed by a usual one."""
    usual = {name: values[0] for name, (values, _) in SEND.items()} | {"properties": USUAL % 0}
    odd = [usual | {name: value} for name, (_, values) in SEND.items() for value in values]
    for name, values in PROPERTIES.items():
        for value in values:
            pair = f"{name}\x01{value}"
            texts = (pair, f"{USUAL % 1}\x02{pair}\x02", f"{pair}\x02{USUAL % 2}")
            odd += [usual | {"properties": text} for text in texts]
    sent = [
        (code, ext if code == 10 else {NAMES[name]: value for name, value in ext.items()})
        for each in odd
        for code, ext in ((310, each), (310, usual), (10, each))
    ]
    pull = {name: values[0] for name, (values, _) in PULL.items()}
    odd = [pull | {name: value} for name, (_, values) in PULL.items() for value in values]
    pulled = [(code, each) for each in odd for code in (11, 361)]
    asked = []
    for opaque, (code, ext) in enumerate([*sent, *pulled]):
        fields = {name: value for name, value in ext.items() if value is not None}
        if codec == JSON:
            named = {"code": code, "extFields": fields, "opaque": opaque, "version": 453}
            frame = framed(JSON, json.dumps(named, separators=(",", ":")).encode(), b"body")
        elif codec == MSGPACK:
            header = (code, 0, opaque, 0, 453, None, fields)
            frame = framed(MSGPACK, msgpack.packb(header), b"body")
        else:
            ext_texts = {name: _text(value) for name, value in fields.items()}
            frame = encode_frame(Command(code, ext_texts, b"body", opaque, codec=ROCKETMQ))
        asked.append(Asked(frame, opaque, f"{code} {ext}"))
    return [asked[start : start + 40] for start in range(0, len(asked), 40)]
