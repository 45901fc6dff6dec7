"""What the options' texts mean: each parser raises ValueError with what it expects."""

import json
import re
from collections.abc import Callable
from typing import Any, Final

from aerobee.pipeline.columns import UnknownColumn, check_columns


def parse_boolean(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.lower() not in words:
        raise ValueError("true or false")
    return words[text.lower()]


EARLIEST: Final = -2  # as an offset
LATEST: Final = -1
LONG_MAX: Final = 2**63 - 1  # what a broker takes


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= LONG_MAX


def parse_positive(text: str) -> int:
    if not _is_number(text) or int(text) < 1:
        raise ValueError("a whole number of at least 1")
    return int(text)


def parse_count(text: str) -> int:
    if not _is_number(text):
        raise ValueError("a whole number of at least 0")
    return int(text)


def parse_time_ms(text: str) -> int:
    if not _is_number(text):
        raise ValueError("milliseconds since 1970, e.g. 1767225600000")
    return int(text)


def parse_names(text: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    if not names:
        raise ValueError("one or more names, separated by commas")
    return names


def parse_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return text


def parse_address_list(text: str) -> tuple[str, ...]:
    addresses = tuple(word.strip() for word in re.split("[;,]", text) if word.strip())
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not host or not colon or not _is_number(port) or int(port) > 65535:
            raise ValueError("host:port, several separated by ;")
    if not addresses:
        raise ValueError("host:port, several separated by ;")
    return addresses


def parse_queue_numbers(text: str, least: int = 0) -> dict[str, dict[str, int]]:
    """{"topic": {"queue": number}}; a queue is "0" or, with several brokers, "broker-a:0"."""
    wanted = 'JSON like {"orders":{"0":123}}, or {"orders":{"broker-a:0":123}} with several brokers'

    def checked(number: Any) -> int:
        if type(number) is not int or not least <= number <= LONG_MAX:
            raise ValueError(wanted)
        return number

    try:
        table = json.loads(text)
        return {
            str(topic): {str(queue): checked(number) for queue, number in queues.items()}
            for topic, queues in table.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise ValueError(wanted) from None


def parse_offsets(text: str) -> str | dict[str, dict[str, int]]:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        return parse_queue_numbers(text, EARLIEST)
    except ValueError as error:
        raise ValueError(f"earliest, latest or {error} (-2 earliest, -1 latest)") from None


def parse_assigned(text: str) -> dict[str, list[str]]:
    try:
        table = json.loads(text)
        if not all(isinstance(queues, list) for queues in table.values()):
            raise TypeError("a list is missing")
        return {str(topic): [str(queue) for queue in queues] for topic, queues in table.items()}
    except (ValueError, AttributeError, TypeError):
        raise ValueError('JSON like {"orders":[0,1]}') from None


def parse_columns(text: str) -> tuple[str, ...]:
    try:
        return check_columns(parse_names(text))
    except UnknownColumn as error:
        raise ValueError(f"a list of columns: {error}") from None


_DURATION: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def parse_duration_ms(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h)", text.strip())
    if match is None:
        raise ValueError("a time like 500ms, 30s, 15m or 1h")
    return int(match.group(1)) * _DURATION[match.group(2)]


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(" or ".join(words))
        return text.lower()

    return parse


def parse_text(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not empty")
    return text.strip()


def parse_query_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]{1,128}", text):
        raise ValueError("letters, digits and dashes, at most 128")
    return text
