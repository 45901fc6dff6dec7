"""The body of REGISTER_BROKER, which carries a broker's topics: plain JSON or compressed.

Compressed, after inflation (every length is a 4-byte integer):

    length, DataVersion as JSON
    number of topics, then for each: length, "name read write perm filterType attributesAsJson"
    length, list of filter servers as JSON
    from 5.0 on: number of static topics, then for each: length, JSON (not used here)
"""

import struct
import zlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

from aerobee.broker.services.config_files.config_file import as_int
from aerobee.broker.services.name_service.route_data import QueueData
from aerobee.broker.services.topics.config import FILTER_TYPES, TopicConfig, topic_from_json
from aerobee.protocol.json import fastjson, json_stream

_INT: Final = struct.Struct(">i")
_INFLATED_SIZE_MAX: Final = 32 << 20
_SLICE: Final = 64
_SLICE_DECODED: Final = 16  # takes longer
_WRAPPER: Final = "topicConfigSerializeWrapper"
_TABLE: Final = "topicConfigTable"

Body = tuple[dict[str, int], dict[str, TopicConfig], list[str]]
Slices = Generator[None, None, bytes]
BodySlices = Generator[None, None, Body]


class BadBody(ValueError):
    """A registration that cannot be read."""


def decode_slices(body: bytes | memoryview, *, compressed: bool) -> BodySlices:
    """(data version, topics, filter servers), read a few topics between one yield and the next;
    BadBody says what is wrong."""
    if not body:
        return {}, {}, []
    decode = _decode_compressed if compressed else _decode_plain
    try:
        return (yield from decode(bytes(body)))
    except (fastjson.JsonError, zlib.error, UnicodeDecodeError) as error:
        raise BadBody(f"the registration's body cannot be read: {error}") from None


def plain_slices(
    data_version: dict[str, int], topics: Mapping[str, TopicConfig], perm_mask: int
) -> Slices:
    """The body, made of `_SLICE` topics between one yield and the next; the table may change
    meanwhile. A broker that may not be written registers topics that may not be written either."""
    version = fastjson.dumps(data_version)
    parts = []
    for names in _slices_of(topics):
        table = {
            name: config.to_json() | {"perm": config.perm & perm_mask}
            for name in names
            if (config := topics.get(name)) is not None
        }
        if table:
            parts.append(fastjson.dumps(table)[1:-1])
        yield
    return b"".join(
        (
            b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":',
            version,
            b',"mappingDataVersion":',
            version,
            b',"topicConfigTable":{',
            b",".join(parts),
            b'},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}',
        )
    )


def compressed_slices(
    data_version: dict[str, int], topics: Mapping[str, TopicConfig], perm_mask: int
) -> Slices:
    """Likewise, compressed."""
    texts = []
    for names in _slices_of(topics):
        for name in names:
            config = topics.get(name)
            if config is not None:
                texts.append(_counted(_topic_text(config, perm_mask)))
        yield
    packer = zlib.compressobj()
    head = _counted(fastjson.dumps(data_version)) + _INT.pack(len(texts))
    parts = [packer.compress(head)]
    for start in range(0, len(texts), _SLICE):
        parts.append(packer.compress(b"".join(texts[start : start + _SLICE])))
        yield
    parts.append(packer.compress(_counted(b"[]") + _INT.pack(0)))
    parts.append(packer.flush())
    return b"".join(parts)


def _topic_text(config: TopicConfig, perm_mask: int) -> bytes:
    numbers = f"{config.read_queue_nums} {config.write_queue_nums} {config.perm & perm_mask}"
    text = f"{config.name} {numbers} {config.topic_filter_type}"
    if config.attributes:  # 4.9 reads a topic of exactly five fields
        text += " " + fastjson.dumps(config.attributes).decode()
    return text.encode()


def _slices_of(topics: Mapping[str, TopicConfig]) -> Iterator[list[str]]:
    names = list(topics)
    return (names[start : start + _SLICE] for start in range(0, len(names), _SLICE))


def topic_queues_from_route(body: bytes | memoryview) -> list[QueueData]:
    """The queues in a TopicRouteData, with which a single topic can be registered."""
    content = fastjson.loads(body) if body else {}
    queues = content.get("queueDatas") if isinstance(content, dict) else None
    return [
        QueueData(
            str(queue.get("brokerName", "")),
            as_int(queue.get("readQueueNums"), 0),
            as_int(queue.get("writeQueueNums"), 0),
            as_int(queue.get("perm"), 0),
            as_int(queue.get("topicSysFlag"), 0),
        )
        for queue in (queues if isinstance(queues, list) else [])
        if isinstance(queue, dict)
    ]


def _counted(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _decode_plain(body: bytes) -> BodySlices:
    text = body.decode()
    if '"$ref"' not in text:
        try:
            return (yield from _decode_entries(json_stream.entries(text, _OPENED)))
        except (ValueError, IndexError, RecursionError):
            pass  # not standard JSON: parsed at once, by the tolerant reader
    return (yield from _decode_entries(_entries_of(fastjson.loads(text))))


_OPENED: Final = {(_WRAPPER,), (_WRAPPER, _TABLE)}


def _entries_of(content: Any) -> Iterator[json_stream.Entry]:
    """As `json_stream.entries`, for a body that was parsed at once."""

    def walk(path: json_stream.Path, value: Any) -> Iterator[json_stream.Entry]:
        if value and isinstance(value, dict) and (not path or path in _OPENED):
            for key, inner in value.items():
                yield from walk((*path, str(key)), inner)
        else:
            yield path, value

    return walk((), content)


def _decode_entries(entries: Iterator[json_stream.Entry]) -> BodySlices:
    topics: dict[str, TopicConfig] = {}
    others: dict[json_stream.Path, Any] = {}
    for count, (path, value) in enumerate(entries):
        if len(path) < 3:
            others[path] = value
        elif isinstance(value, dict):
            topics[path[-1]] = topic_from_json(value, path[-1])
        if count % _SLICE_DECODED == 0:
            yield
    if not topics and not any(
        path[:1] == (_WRAPPER,) and (len(path) > 1 or isinstance(value, dict))
        for path, value in others.items()
    ):
        raise BadBody(f"the registration's body has no {_WRAPPER}")
    version = _version(others.get((_WRAPPER, "dataVersion")))
    return version, topics, _texts(others.get(("filterServerList",)))


def _decode_compressed(body: bytes) -> BodySlices:
    inflater = zlib.decompressobj()
    reader = _Reader(inflater.decompress(body, _INFLATED_SIZE_MAX))
    if inflater.unconsumed_tail:
        raise BadBody(f"the registration's body is larger than {_INFLATED_SIZE_MAX} bytes")
    version = _version(fastjson.loads(reader.counted()))
    topics = {}
    for count in range(reader.number()):
        topic = _topic_from_text(reader.counted().decode())
        topics[topic.name] = topic
        if count % _SLICE_DECODED == 0:
            yield
    return version, topics, _texts(fastjson.loads(reader.counted() or b"[]"))


def _topic_from_text(text: str) -> TopicConfig:
    parts = text.split(" ", 5)
    if len(parts) < 5:
        raise BadBody(f"a topic of the registration is cut short: {text[:100]!r}")
    name, read, write, perm, filter_type = parts[:5]
    if filter_type.isdigit():
        filter_type = FILTER_TYPES[min(int(filter_type), 1)]
    attributes = fastjson.loads(parts[5]) if len(parts) > 5 and parts[5].strip() else {}
    return TopicConfig(
        name,
        as_int(read, 16),
        as_int(write, 16),
        as_int(perm, 6),
        filter_type,
        attributes=attributes if isinstance(attributes, dict) else {},
    )


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        if self._at + _INT.size > len(self._data):
            raise BadBody(f"the registration's body is cut short at {self._at}")
        (value,) = _INT.unpack_from(self._data, self._at)
        self._at += _INT.size
        return int(value)

    def counted(self) -> bytes:
        size = self.number()
        if not 0 <= size <= len(self._data) - self._at:
            raise BadBody(f"the registration's body is cut short at {self._at}")
        self._at += size
        return self._data[self._at - size : self._at]


def _version(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    return {str(key): as_int(number, 0) for key, number in value.items()}


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
