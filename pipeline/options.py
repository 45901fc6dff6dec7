"""The options of the source and of the sink: names, kinds, defaults, and errors that say the fix.

Spark lowers no names and knows no kinds: `source_options` and `sink_options` do both, by the two
tables below. Names are those of Spark's Kafka source and sink where the meaning is the same.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aerobee.pipeline.columns import DEFAULT_COLUMNS, UnknownColumn, check_columns
from aerobee.pipeline.errors import OptionError

__all__ = ["OptionError", "Options", "sink_options", "source_options"]


def _boolean(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.lower() not in words:
        raise ValueError("true or false")
    return words[text.lower()]


EARLIEST: Final = -2  # as an offset
LATEST: Final = -1
LONG_MAX: Final = 2**63 - 1  # what a broker takes


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= LONG_MAX


def _positive(text: str) -> int:
    if not _is_number(text) or int(text) < 1:
        raise ValueError("a whole number of at least 1")
    return int(text)


def _count(text: str) -> int:
    if not _is_number(text):
        raise ValueError("a whole number of at least 0")
    return int(text)


def _time_ms(text: str) -> int:
    if not _is_number(text):
        raise ValueError("milliseconds since 1970, e.g. 1767225600000")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    if not names:
        raise ValueError("one or more names, separated by commas")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return text


def _address_list(text: str) -> tuple[str, ...]:
    addresses = tuple(word.strip() for word in re.split("[;,]", text) if word.strip())
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not host or not colon or not _is_number(port) or int(port) > 65535:
            raise ValueError("host:port, several separated by ;")
    if not addresses:
        raise ValueError("host:port, several separated by ;")
    return addresses


def _queue_numbers(text: str, least: int = 0) -> dict[str, dict[str, int]]:
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


def _offsets(text: str) -> str | dict[str, dict[str, int]]:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        return _queue_numbers(text, EARLIEST)
    except ValueError as error:
        raise ValueError(f"earliest, latest or {error} (-2 earliest, -1 latest)") from None


def _assigned(text: str) -> dict[str, list[str]]:
    try:
        table = json.loads(text)
        if not all(isinstance(queues, list) for queues in table.values()):
            raise TypeError("a list is missing")
        return {str(topic): [str(queue) for queue in queues] for topic, queues in table.items()}
    except (ValueError, AttributeError, TypeError):
        raise ValueError('JSON like {"orders":[0,1]}') from None


def _columns(text: str) -> tuple[str, ...]:
    try:
        return check_columns(_names(text))
    except UnknownColumn as error:
        raise ValueError(f"a list of columns: {error}") from None


_DURATION: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h)", text.strip())
    if match is None:
        raise ValueError("a time like 500ms, 30s, 15m or 1h")
    return int(match.group(1)) * _DURATION[match.group(2)]


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(" or ".join(words))
        return text.lower()

    return parse


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not empty")
    return text.strip()


def _query_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]{1,128}", text):
        raise ValueError("letters, digits and dashes, at most 128")
    return text


@dataclass(frozen=True, slots=True)
class Option:
    """How one option is read."""

    parse: Callable[[str], Any]
    default: Any = None


CONNECTION: Final[dict[str, Option]] = {
    "namesrv": Option(_address_list),
    "accessKey": Option(_text),
    "secretKey": Option(_text),
    "securityToken": Option(_text),
    "useTLS": Option(_boolean, False),
    "tlsCaFile": Option(_text),
    "timeoutMs": Option(_positive, 10_000),
    "timeout.broker": Option(_duration_ms, 5 * 60_000),
    "fetchOffset.numRetries": Option(_count, 5),
    "fetchOffset.retryIntervalMs": Option(_count, 300),
}
SOURCE: Final[dict[str, Option]] = CONNECTION | {
    "path": Option(_text),
    "subscribe": Option(_names),
    "subscribePattern": Option(_pattern),
    "assign": Option(_assigned),
    "startingOffsets": Option(_offsets),
    "endingOffsets": Option(_offsets),
    "startingTimestamp": Option(_time_ms),
    "endingTimestamp": Option(_time_ms),
    "startingOffsetsByTimestamp": Option(_queue_numbers),
    "endingOffsetsByTimestamp": Option(_queue_numbers),
    "startingOffsetsByTimestampStrategy": Option(_one_of("error", "latest"), "error"),
    "failOnDataLoss": Option(_boolean, True),
    "failOnNoMatch": Option(_boolean, False),
    "maxOffsetsPerTrigger": Option(_positive),
    "minOffsetsPerTrigger": Option(_positive),
    "maxTriggerDelay": Option(_duration_ms, 15 * 60_000),
    "availableNow": Option(_boolean),
    "minPartitions": Option(_positive),
    "maxRecordsPerPartition": Option(_positive),
    "includeHeaders": Option(_boolean, False),
    "groupId": Option(_text),
    "commitOffsets": Option(_boolean, True),
    "tags": Option(_text),
    "sql": Option(_text),
    "columns": Option(_columns, DEFAULT_COLUMNS),
    "pushdown": Option(_boolean),  # by default where Spark hands filters over
    "catalog": Option(_one_of("topics", "table")),  # used by TopicCatalog.java, not by people
    "splitBytes": Option(_positive, 128 * 1024 * 1024),
    "sealedOnly": Option(_boolean, False),
    "history": Option(_text),
}
SINK: Final[dict[str, Option]] = CONNECTION | {
    "topic": Option(_text),
    "deliveryGuarantee": Option(_one_of("at-least-once", "exactly-once"), "at-least-once"),
    "producerGroup": Option(_text, "spark-aerobee"),
    "maxBatchBytes": Option(_positive, 1024 * 1024),
    "rowsPerSecond": Option(_positive),
    "preparedTimeout": Option(_duration_ms, 24 * 3_600_000),
    "txnAppId": Option(_query_id),
    "txnVersion": Option(_count),
}
# What Spark itself puts among the options of a stream.
_SPARKS_OWN: Final = frozenset(("checkpointlocation", "queryname", "__query_id__"))
_OTHER_NAMES: Final = {
    "kafka.bootstrap.servers": "namesrv (host:port of the name server)",
    "kafka.group.id": "groupId",
    "groupidprefix": "groupId",
    "nameserver": "namesrv",
    "topics": "subscribe",
    "rowsperbatch": "maxOffsetsPerTrigger",
    "includebody": "columns (name the columns that you want)",
}


NO_TABLES: Final = (
    "Spark keeps the options of such a table and does not give them to a Python source when it is "
    "read. Use CREATE TEMPORARY VIEW name USING aerobee OPTIONS (...)"
)


class Options:
    """Parsed options by their names: `options["failOnDataLoss"]`; an absent one is its default."""

    def __init__(self, table: Mapping[str, Option], given: Mapping[str, str]) -> None:
        self._values: dict[str, Any] = {name: option.default for name, option in table.items()}
        self.given: set[str] = set()
        known = {name.lower(): name for name in table}
        for written, text in given.items():
            if written.lower() in _SPARKS_OWN:
                continue
            name = known.get(written.lower())
            if name is None:
                raise OptionError(_unknown(written, table))
            try:
                self._values[name] = table[name].parse(str(text))
            except ValueError as error:
                raise OptionError(f"option {name} is {text!r}, expected {error}") from None
            self.given.add(name)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]


def _unknown(written: str, table: Mapping[str, Option]) -> str:
    lowered = written.lower()
    if lowered in _OTHER_NAMES:
        return f"there is no option {written}; use {_OTHER_NAMES[lowered]}"
    if lowered.startswith("kafka."):
        return f"option {written} belongs to Spark's Kafka source; leave it out here"
    near = difflib.get_close_matches(lowered, [name.lower() for name in table], n=1)
    known = {name.lower(): name for name in table}
    hint = f"did you mean {known[near[0]]}?" if near else f"the options are {', '.join(table)}"
    return f"there is no option {written}; {hint}"


def source_options(given: Mapping[str, str], *, streaming: bool) -> Options:
    """The options of a read; OptionError for every combination that makes no sense."""
    options = Options(SOURCE, given)
    if options["includeHeaders"] and "headers" not in options["columns"]:
        options._values["columns"] = (*options["columns"], "headers")
    if options["path"] is not None:
        _check_offline(options, streaming)
        return options
    _need_namesrv(options)
    if options["catalog"] == "topics":
        return options
    _one_topic_choice(options)
    _one_bound(options, "starting")
    _one_bound(options, "ending")
    if options["tags"] and options["sql"]:
        raise OptionError("options tags and sql exclude each other: a broker applies one filter")
    if options["history"] and options["sql"]:
        raise OptionError("option sql is applied by brokers; with history, filter after the read")
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushdown"):
            if name in options.given:
                raise OptionError(f"option {name} is for batch reads; a stream has no end")
    else:
        _only_for_streams(options)
        if options["startingOffsets"] == "latest":
            raise OptionError("startingOffsets=latest makes an empty batch read; use earliest")
        if options["endingOffsets"] == "earliest":
            raise OptionError("endingOffsets=earliest makes an empty batch read; use latest")
    if options["sealedOnly"] or "splitBytes" in options.given:
        raise OptionError("options sealedOnly and splitBytes are for reads by path")
    return options


def check_limit(options: Options, *, spark_keeps_limits: bool) -> None:
    """OptionError where a run with Trigger.AvailableNow would end early, without an error."""
    if spark_keeps_limits or not options["maxOffsetsPerTrigger"]:
        return
    if options["availableNow"] is not False:
        raise OptionError(
            "Spark 4.1 does not give a source its trigger, and with Trigger.AvailableNow a run "
            "would end after maxOffsetsPerTrigger messages. Leave maxOffsetsPerTrigger out, or use "
            "Spark 4.2 or newer, or set availableNow=false for a stream with another trigger"
        )


def no_match(options: Options, text: str, warn: Callable[[str], None]) -> None:
    """A read that covers nothing: an error when failOnNoMatch asks for one, else a warning."""
    if options["failOnNoMatch"]:
        raise OptionError(f"{text}; leave failOnNoMatch out to read nothing")
    warn(f"{text}; set failOnNoMatch=true to make this an error")


def _only_for_streams(options: Options) -> None:
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "availableNow"):
        if name in options.given:
            raise OptionError(f"option {name} is for streams (readStream), not for a batch read")


def _need_namesrv(options: Options) -> None:
    if options["namesrv"] is None:
        of_a_table = "" if options.given else f". If this is a table of CREATE TABLE: {NO_TABLES}"
        raise OptionError(
            "where to read from is missing: give namesrv=host:9876, or path=STORE_DIR to read the "
            f"files of a store{of_a_table}"
        )
    _check_credentials(options)


def _check_credentials(options: Options) -> None:
    if (options["accessKey"] is None) != (options["secretKey"] is None):
        raise OptionError("options accessKey and secretKey go together; one of them is missing")


def _one_topic_choice(options: Options) -> None:
    choices = [name for name in ("subscribe", "subscribePattern", "assign") if options[name]]
    if len(choices) != 1:
        given = " and ".join(choices) if choices else "none"
        raise OptionError(f"give one of subscribe, subscribePattern and assign; {given} was given")


def _one_bound(options: Options, side: str) -> None:
    names = (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp")
    given = [name for name in names if name in options.given]
    if len(given) > 1:
        raise OptionError(f"options {' and '.join(given)} exclude each other; give one")


_OFFLINE: Final = frozenset(
    (
        "path",
        "subscribe",
        "subscribePattern",
        "startingTimestamp",
        "endingTimestamp",
        "failOnNoMatch",
        "includeHeaders",
        "tags",
        "columns",
        "pushdown",
        "splitBytes",
        "sealedOnly",
        "minPartitions",
    )
)


def _check_offline(options: Options, streaming: bool) -> None:
    if streaming:
        raise OptionError("option path reads files once: use spark.read, or namesrv for a stream")
    for name in sorted(options.given - _OFFLINE):
        raise OptionError(f"option {name} has no meaning for a read by path; leave it out")
    if options["subscribe"] and options["subscribePattern"]:
        raise OptionError("give subscribe or subscribePattern, not both")


def sink_options(given: Mapping[str, str]) -> Options:
    """The options of a write."""
    options = Options(SINK, given)
    if options["namesrv"] is None:
        of_a_table = "" if options.given else f". If this is a table of CREATE TABLE: {NO_TABLES}"
        raise OptionError(f"where to write to is missing: give namesrv=host:9876{of_a_table}")
    _check_credentials(options)
    if options["rowsPerSecond"] and options["deliveryGuarantee"] == "exactly-once":
        raise OptionError("rowsPerSecond does not go with exactly-once: rows appear at the commit")
    _check_transaction(options)
    return options


def _check_transaction(options: Options) -> None:
    given = [name for name in ("txnAppId", "txnVersion") if name in options.given]
    if len(given) == 1:
        raise OptionError(f"options txnAppId and txnVersion go together; only {given[0]} was given")
    if given and options["deliveryGuarantee"] != "exactly-once":
        raise OptionError("options txnAppId and txnVersion need deliveryGuarantee=exactly-once")
