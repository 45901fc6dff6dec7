"""The options of the source and of the sink: names, kinds, defaults, and errors that say the fix.

Spark lowers no names and knows no kinds: `source_options` and `sink_options` do both, by the two
tables below. Names are those of Spark's Kafka source and sink where the meaning is the same.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aerobee.pipeline.columns import DEFAULT_COLUMNS
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.option_values import (
    one_of,
    parse_address_list,
    parse_assigned,
    parse_boolean,
    parse_columns,
    parse_count,
    parse_duration_ms,
    parse_names,
    parse_offsets,
    parse_pattern,
    parse_positive,
    parse_query_id,
    parse_queue_numbers,
    parse_text,
    parse_time_ms,
)

__all__ = ["OptionError", "Options", "sink_options", "source_options"]


@dataclass(frozen=True, slots=True)
class Option:
    """How one option is read."""

    parse: Callable[[str], Any]
    default: Any = None


CONNECTION: Final[dict[str, Option]] = {
    "namesrv": Option(parse_address_list),
    "accessKey": Option(parse_text),
    "secretKey": Option(parse_text),
    "securityToken": Option(parse_text),
    "useTLS": Option(parse_boolean, False),
    "tlsCaFile": Option(parse_text),
    "timeoutMs": Option(parse_positive, 10_000),
    "timeout.broker": Option(parse_duration_ms, 5 * 60_000),
    "fetchOffset.numRetries": Option(parse_count, 5),
    "fetchOffset.retryIntervalMs": Option(parse_count, 300),
}
SOURCE: Final[dict[str, Option]] = CONNECTION | {
    "path": Option(parse_text),
    "subscribe": Option(parse_names),
    "subscribePattern": Option(parse_pattern),
    "assign": Option(parse_assigned),
    "startingOffsets": Option(parse_offsets),
    "endingOffsets": Option(parse_offsets),
    "startingTimestamp": Option(parse_time_ms),
    "endingTimestamp": Option(parse_time_ms),
    "startingOffsetsByTimestamp": Option(parse_queue_numbers),
    "endingOffsetsByTimestamp": Option(parse_queue_numbers),
    "startingOffsetsByTimestampStrategy": Option(one_of("error", "latest"), "error"),
    "failOnDataLoss": Option(parse_boolean, True),
    "failOnNoMatch": Option(parse_boolean, False),
    "maxOffsetsPerTrigger": Option(parse_positive),
    "minOffsetsPerTrigger": Option(parse_positive),
    "maxTriggerDelay": Option(parse_duration_ms, 15 * 60_000),
    "availableNow": Option(parse_boolean),
    "minPartitions": Option(parse_positive),
    "maxRecordsPerPartition": Option(parse_positive),
    "includeHeaders": Option(parse_boolean, False),
    "groupId": Option(parse_text),
    "commitOffsets": Option(parse_boolean, True),
    "tags": Option(parse_text),
    "sql": Option(parse_text),
    "columns": Option(parse_columns, DEFAULT_COLUMNS),
    "pushdown": Option(parse_boolean),  # by default where Spark hands filters over
    "catalog": Option(one_of("topics", "table", "count")),  # for TopicCatalog.java alone
    "splitBytes": Option(parse_positive, 128 * 1024 * 1024),
    "sealedOnly": Option(parse_boolean, False),
    "history": Option(parse_text),
}
SINK: Final[dict[str, Option]] = CONNECTION | {
    "topic": Option(parse_text),
    "deliveryGuarantee": Option(one_of("at-least-once", "exactly-once"), "at-least-once"),
    "producerGroup": Option(parse_text, "spark-aerobee"),
    "maxBatchBytes": Option(parse_positive, 1024 * 1024),
    "rowsPerSecond": Option(parse_positive),
    "preparedTimeout": Option(parse_duration_ms, 24 * 3_600_000),
    "txnAppId": Option(parse_query_id),
    "txnVersion": Option(parse_count),
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
