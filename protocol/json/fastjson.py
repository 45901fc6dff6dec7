"""RocketMQ's JSON bodies, not always JSON: map keys may be bare integers or whole objects.

`dumps` writes them so (compact, keys sorted, no nulls); `loads` takes them, and single quotes, bare
names, stray commas and `$ref` marks of a repeated object besides.
"""

import json
import re
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, Final, NamedTuple

import msgspec


class MessageQueue(NamedTuple):
    """A queue of a topic on a broker; as a map key it is written as an object."""

    topic: str
    broker_name: str
    queue_id: int


class JsonError(ValueError):
    """A body that even the tolerant parser cannot read."""


def dumps(value: Any, *, indent: int = 0) -> bytes:
    """`value` in RocketMQ's form; with `indent` spread over lines for a file that people read."""
    if _is_plain(value):
        data = msgspec.json.encode(value, order="sorted")
        return msgspec.json.format(data, indent=indent) if indent else data
    return _write(value, "\n" if indent else "", " " * indent).encode()


def _is_plain(value: Any) -> bool:
    """Whether it is standard JSON: then a C library writes it, ten times as fast."""
    kind = type(value)
    if kind is str or kind is bool:
        return True
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if kind is float:
        return isfinite(value)
    if kind is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    return (kind is list or kind is tuple) and all(_is_plain(item) for item in value)


def _write(value: Any, line: str, step: str) -> str:
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is str:
        return encode_basestring(value)
    if isinstance(value, MessageQueue):
        value = _queue_object(value)
    if isinstance(value, dict):
        inner = line + step if line else ""
        pairs = [
            f"{_write_key(key)}:{_write(item, inner, step)}"
            for key, item in sorted(value.items(), key=_key_order)
            if item is not None
        ]
        return "{" + inner + ("," + inner).join(pairs) + line + "}" if pairs else "{}"
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return "[" + ",".join(_write(item, line, step) for item in items) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _key_order(pair: tuple[Any, Any]) -> tuple[str, Any]:
    return type(pair[0]).__name__, pair[0]


def _write_key(key: Any) -> str:
    if isinstance(key, MessageQueue):
        return _write(key, "", "")
    if isinstance(key, int):
        return str(key)
    return encode_basestring(str(key))


def _queue_object(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def loads_request(data: bytes | memoryview | str) -> Any:
    """As `loads`, for what a client sends: a large one must be standard JSON, as the tolerant
    parser takes more than a second for a megabyte, in which nobody else is served."""
    return loads(data, TOLERANT_MAX)


def loads(data: bytes | memoryview | str, tolerant_max: int | None = None) -> Any:
    """The value of a body. Bare integer keys become ints, queue objects as keys MessageQueue.
    `tolerant_max`: larger ones must be standard JSON."""
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"the body is not UTF-8: {error.reason} at {error.start}") from None
    if '"$ref"' not in text:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            pass  # use the tolerant parser
    if tolerant_max is not None and len(text) > tolerant_max:
        raise JsonError(f"the body has {len(text)} characters and is no standard JSON")
    reader = _Reader(text)
    try:
        value = reader.value()
        reader.skip()
        if reader.at < len(text):
            raise reader.error("more text after the value")
        return _References(value).resolved(value)
    except RecursionError:
        raise JsonError("the body is nested too deeply") from None


TOLERANT_MAX: Final = 256 << 10  # characters of a request
_SPACE: Final = re.compile(r"[\s,]*")
_BLANK: Final = re.compile(r"\s*")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_NAME: Final = re.compile(r"[A-Za-z_$][\w$.-]*")
_PLAIN: Final = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_WORDS: Final = {"true": True, "false": False, "null": None, "NaN": None}
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_NUMBER_DIGITS_MAX: Final = 400
_REPEATED_MAX: Final = 16 << 20  # characters: references may make a small body a huge value
_HALVES: Final = re.compile("[\ud800-\udfff]")


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def error(self, reason: str) -> JsonError:
        near = self.text[self.at : self.at + 20]
        return JsonError(f"the body cannot be read at {self.at} ({near!r}): {reason}")

    def skip(self, pattern: re.Pattern[str] = _BLANK) -> str:
        match = pattern.match(self.text, self.at)
        assert match is not None  # both patterns match the empty text
        self.at = match.end()
        return self.text[self.at : self.at + 1]

    def value(self) -> Any:
        first = self.skip()
        if first == "{":
            return self.object()
        if first == "[":
            return self.array()
        if first in ('"', "'"):
            return self.string(first)
        if number := _NUMBER.match(self.text, self.at):
            return self.number(number)
        if word := _NAME.match(self.text, self.at):
            self.at = word.end()
            if word.group() in _WORDS:
                return _WORDS[word.group()]
            return word.group()
        raise self.error("a value was expected")

    def number(self, match: re.Match[str]) -> int | float:
        text = match.group()
        if len(text) > _NUMBER_DIGITS_MAX:
            raise self.error("the number has too many digits")
        self.at = match.end()
        return int(text) if match.group(1) is None and match.group(2) is None else float(text)

    def array(self) -> list[Any]:
        self.at += 1
        items = []
        while (following := self.skip(_SPACE)) != "]":
            if not following:
                raise self.error("the list has no end")
            items.append(self.value())
        self.at += 1
        return items

    def object(self) -> dict[Any, Any]:
        self.at += 1
        pairs: dict[Any, Any] = {}
        while (following := self.skip(_SPACE)) != "}":
            if not following:
                raise self.error("the object has no end")
            key = _as_key(self.value())
            if self.skip() != ":":
                raise self.error("a colon was expected")
            self.at += 1
            pairs[key] = self.value()
        self.at += 1
        return pairs

    def string(self, quote: str) -> str:
        pieces = []
        at = self.at + 1
        while match := _PLAIN[quote].match(self.text, at):  # the empty text matches
            pieces.append(match.group())
            at = match.end()
            mark = self.text[at : at + 1]
            if not mark:
                break
            if mark == quote:
                self.at = at + 1
                return _whole("".join(pieces))
            piece, at = self.escape(at + 1)
            pieces.append(piece)
        raise self.error("the text has no end")

    def escape(self, at: int) -> tuple[str, int]:
        mark = self.text[at : at + 1]
        width = {"u": 4, "x": 2}.get(mark)
        if width is None:
            return _ESCAPES.get(mark, mark), at + 1
        digits = self.text[at + 1 : at + 1 + width]
        try:
            return chr(int(digits, 16)), at + 1 + width
        except ValueError:
            raise self.error(f"\\{mark}{digits} is not a character") from None


def _whole(text: str) -> str:
    """`text` with surrogate pairs, which come from escapes, joined; a lone surrogate is replaced,
    as it cannot be encoded again."""
    if _HALVES.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _as_key(value: Any) -> Any:
    if isinstance(value, dict):
        try:
            return MessageQueue(value["topic"], value["brokerName"], int(value["queueId"]))
        except (KeyError, TypeError, ValueError):
            return tuple(sorted((str(name), str(item)) for name, item in value.items()))
    return tuple(map(str, value)) if isinstance(value, list) else value


_STEP: Final = re.compile(r"\.([\w$]+)|\[(\d+)\]")


class _References:
    """The `{"$ref": "$.path"}` marks of one body."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._sizes: dict[int, int] = {}  # of what they point at, by its identity
        self._repeated = 0

    def resolved(self, value: Any) -> Any:
        """`value` with each mark replaced by what it points at, where that is found."""
        if isinstance(value, dict):
            if len(value) == 1 and isinstance(reference := value.get("$ref"), str):
                return self._follow(reference, value)
            return {key: self.resolved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item) for item in value]
        return value

    def _follow(self, reference: str, missing: Any) -> Any:
        target = self._root
        for name, index in _STEP.findall(reference.removeprefix("$")):
            try:
                target = target[name] if name else target[int(index)]
            except (KeyError, IndexError, TypeError):
                return missing
        if target is self._root:
            return missing
        size = self._sizes.get(id(target))
        if size is None:
            size = self._sizes[id(target)] = _size(target)
        self._repeated += size
        if self._repeated > _REPEATED_MAX:
            raise JsonError("the body repeats too much by references")
        return target


def _size(value: Any) -> int:
    """About the length of the value's text."""
    if isinstance(value, dict):
        return 2 + sum([_size(key) + _size(item) for key, item in value.items()])
    if isinstance(value, list):
        return 2 + sum([_size(item) for item in value])
    return 3 + len(value) if isinstance(value, str) else 8
