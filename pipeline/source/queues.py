"""Which queues a read covers, from which offset to which: the driver asks the brokers."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from aerobee.pipeline.option_values import EARLIEST, LATEST
from aerobee.pipeline.options import OptionError, Options, no_match
from aerobee.pipeline.wire import Cluster, Link, Unreachable, checked
from aerobee.protocol.files.record_layout import HEAD_V4_SIZE, store_timestamp
from aerobee.protocol.names import is_system_topic
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.headers import PULL_SUBSCRIPTION

log: Final = logging.getLogger("aerobee.pipeline")
PERM_READ: Final = 4
DEFAULT_GROUP: Final = "spark-aerobee"


class DataLoss(RuntimeError):
    """Messages that the read should have seen are gone, from the offset `at` on."""

    at: int | None = None
    upto: int | None = None  # the first that may be there


class QueueKey(NamedTuple):
    """A queue among all brokers of a cluster."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic} queue {self.queue_id} on {self.broker}"


Addresses = dict[QueueKey, str]
Offsets = dict[QueueKey, int]


def to_json(offsets: Mapping[QueueKey, int]) -> dict[str, dict[str, int]]:
    """Offsets as Spark keeps them in its checkpoint: {"topic": {"broker:queue": offset}}."""
    table: dict[str, dict[str, int]] = {}
    for key in sorted(offsets):
        table.setdefault(key.topic, {})[f"{key.broker}:{key.queue_id}"] = offsets[key]
    return table


def from_json(table: Mapping[str, Mapping[str, int]]) -> Offsets:
    offsets = {}
    for topic, queues in table.items():
        for name, offset in queues.items():
            broker, _, queue_id = name.rpartition(":")
            offsets[QueueKey(topic, broker, int(queue_id))] = int(offset)
    return offsets


def discover(cluster: Cluster, options: Options) -> Addresses:
    """The queues that the options name, each with its broker's address."""
    found: Addresses = {}
    for topic in _topics(cluster, options):
        route = cluster.route(topic)
        if route is None:
            if options["subscribePattern"]:
                continue  # deleted since the list was made
            raise OptionError(_no_topic(topic, cluster))
        for share in route:
            if share.perm & PERM_READ:
                for queue_id in range(share.read_queues):
                    found[QueueKey(topic, share.broker, queue_id)] = share.address
    return _assigned(found, options["assign"]) if options["assign"] else found


def _topics(cluster: Cluster, options: Options) -> Iterable[str]:
    if options["subscribe"]:
        return tuple(options["subscribe"])
    if options["assign"]:
        return tuple(options["assign"])
    pattern = re.compile(options["subscribePattern"])
    if pattern.pattern.startswith("%"):  # retries or dead letters are meant
        known = [topic for topic in cluster.topics() if not is_system_topic(topic)]
    else:
        known = cluster.users_topics()
    topics = [topic for topic in known if pattern.fullmatch(topic)]
    if not topics:
        no_match(options, f"no topic of this cluster matches {pattern.pattern}", log.warning)
    return topics


def _no_topic(topic: str, cluster: Cluster) -> str:
    names = shown_topics(cluster.users_topics())
    return f"topic {topic} does not exist on this cluster; it has {names}"


def shown_topics(names: Sequence[str]) -> str:
    """The names for an error, or some of them where there are many."""
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") or "no topic"


def _assigned(found: Addresses, assign: Mapping[str, list[str]]) -> Addresses:
    chosen: Addresses = {}
    for topic, names in assign.items():
        for name in names:
            key = resolve(topic, name, found)
            chosen[key] = found[key]
    return chosen


def resolve(topic: str, name: str, known: Iterable[QueueKey]) -> QueueKey:
    """The queue that "0" or "broker-a:0" means; OptionError when that is none or several."""
    broker, _, number = name.rpartition(":")
    queues = [key for key in known if key.topic == topic]
    fitting = [key for key in queues if str(key.queue_id) == number and broker in ("", key.broker)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(f"{key.broker}:{key.queue_id}" for key in sorted(queues))
    problem = "is on several brokers" if fitting else "does not exist"
    raise OptionError(f"queue {name} of {topic} {problem}; its queues are {names or 'none'}")


def edges(cluster: Cluster, addresses: Addresses) -> tuple[Offsets, Offsets]:
    """The first offset and the next offset of each queue."""
    return (
        _ask_each(cluster, addresses, RequestCode.GET_MIN_OFFSET, lambda key: {}),
        _ask_each(cluster, addresses, RequestCode.GET_MAX_OFFSET, lambda key: {}),
    )


def latest(cluster: Cluster, addresses: Addresses) -> Offsets:
    return _ask_each(cluster, addresses, RequestCode.GET_MAX_OFFSET, lambda key: {})


def ends(cluster: Cluster, addresses: Addresses, read: Offsets) -> Offsets:
    """The next offset of each queue. That a queue ends before what was `read` of it is accepted
    only from a master: a replica at the former master's address may lack messages."""
    found = latest(cluster, addresses)
    outage = cluster.outage()
    for key in [key for key in found if found[key] < read.get(key, 0)]:
        while (master := cluster.address_now(key.topic, key.broker)) is None:
            outage.wait(f"asking for the end of {key}", Unreachable("it has no master"))
        found |= latest(cluster, {key: master})
    return found


def _ask_each(
    cluster: Cluster,
    addresses: Addresses,
    code: int,
    more: Callable[[QueueKey], dict[str, str]],
) -> Offsets:
    """The `offset` of each queue's answer; the requests of a broker go out at once."""
    answers: Offsets = {}
    for address in sorted(set(addresses.values())):
        keys = sorted(key for key, its_address in addresses.items() if its_address == address)

        def attempt(link: Link, keys: list[QueueKey] = keys) -> Offsets:
            asked = [
                (
                    key,
                    link.ask(code, {"topic": key.topic, "queueId": str(key.queue_id)} | more(key)),
                )
                for key in keys
            ]
            return {
                key: int(checked(link.take(answer), f"asking {key}", link.address).ext["offset"])
                for key, answer in asked
            }

        def moved(key: QueueKey = keys[0]) -> str | None:
            return cluster.address_now(key.topic, key.broker)

        answers |= cluster.retrying("asking for offsets", (address,), attempt, moved)
    return answers


def by_time(cluster: Cluster, addresses: Addresses, times: Mapping[QueueKey, int]) -> Offsets:
    """The first offset whose message was stored at the time or later; the end when there is none.

    A broker before 5 answers with the nearest message, so that message's time is checked.
    """
    wanted = {key: addresses[key] for key in times}
    found = _ask_each(
        cluster,
        wanted,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        lambda key: {"timestamp": str(times[key]), "boundaryType": "lower"},
    )
    first, end = edges(cluster, wanted)
    for key, offset in found.items():
        found[key] = min(max(offset, first[key]), end[key])
        if found[key] < end[key]:
            stored = store_time(cluster, key, wanted[key], found[key])
            found[key] += stored is not None and stored < times[key]
    return found


def store_time(cluster: Cluster, key: QueueKey, address: str, offset: int) -> int | None:
    """When the message there was stored; None when there is none."""
    ext = pull_fields(key, offset, 1, DEFAULT_GROUP)
    code = RequestCode.PULL_MESSAGE
    what = f"reading {key}"
    answer = cluster.retrying(what, (address,), lambda link: link.request(code, dict(ext)))
    if answer.code != ResponseCode.SUCCESS or len(answer.body) < HEAD_V4_SIZE:
        return None
    return store_timestamp(answer.body)


def pull_fields(
    key: QueueKey, offset: int, count: int, group: str, expression: tuple[str, str] = ("TAG", "*")
) -> dict[str, str]:
    """The ext fields of a pull that carries its own subscription and does not wait."""
    return {
        "consumerGroup": group,
        "topic": key.topic,
        "queueId": str(key.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": str(PULL_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": expression[1],
        "expressionType": expression[0],
        "subVersion": "0",
    }


class Past(Protocol):
    """What is kept of queues beyond their brokers' retention."""

    def earliest(self, first: Offsets) -> Offsets:
        """The first offsets, where a broker's are these."""

    def by_time(self, found: Offsets, first: Offsets, times: Mapping[QueueKey, int]) -> Offsets:
        """The first offsets at those times, where brokers found these."""


def bound(
    cluster: Cluster, options: Options, addresses: Addresses, side: str, past: Past | None = None
) -> Offsets:
    """The offsets that starting... or ending... options mean for these queues."""
    kept, end = edges(cluster, addresses)
    first = past.earliest(kept) if past else kept
    default = first if side == "starting" else end

    def at_times(times: Mapping[QueueKey, int]) -> Offsets:
        found = by_time(cluster, addresses, times)
        found = past.by_time(found, kept, times) if past else found
        return _check_strategy(options, side, found, end)

    if (time := options[f"{side}Timestamp"]) is not None:
        return at_times(dict.fromkeys(addresses, time))
    if (table := options[f"{side}OffsetsByTimestamp"]) is not None:
        return default | at_times(_by_queue(table, addresses))
    choice = options[f"{side}Offsets"]
    if choice in ("earliest", "latest"):
        return first if choice == "earliest" else end
    if choice is None:
        return default
    marks = {EARLIEST: first, LATEST: end}
    given = _by_queue(choice, addresses)
    return default | {
        key: marks[offset][key] if offset in marks else offset for key, offset in given.items()
    }


def _check_strategy(options: Options, side: str, offsets: Offsets, end: Offsets) -> Offsets:
    """A starting time after the last message is an error by default, as in the Kafka source."""
    if side == "starting" and options["startingOffsetsByTimestampStrategy"] == "error":
        held = [key for key in offsets if end[key] > 0]
        if held and all(offsets[key] >= end[key] for key in held):
            raise OptionError(
                f"no message was stored at the starting time or later, e.g. in {held[0]}; set "
                "startingOffsetsByTimestampStrategy=latest to begin with the next message"
            )
    return offsets


def _by_queue(table: Mapping[str, Mapping[str, int]], known: Addresses) -> Offsets:
    topics = {key.topic for key in known}
    numbers: Offsets = {}
    for topic, queues in table.items():
        if topic not in topics:
            raise OptionError(f"offsets are given for {topic}, which this read does not cover")
        for name, number in queues.items():
            numbers[resolve(topic, name, known)] = number
    return numbers


def commit_group(cluster: Cluster, addresses: Addresses, group: str, offsets: Offsets) -> None:
    """Commits the group's offsets, so that the brokers' tools show its lag."""
    for key, offset in offsets.items():
        if key in addresses:
            ext = {"consumerGroup": group, "topic": key.topic, "queueId": str(key.queue_id)}
            ext["commitOffset"] = str(offset)
            code = RequestCode.UPDATE_CONSUMER_OFFSET
            cluster.request(f"committing {group}", addresses[key], code, ext)


def spread(start: Offsets, end: Offsets, rows_max: int | None) -> Offsets:
    """`end`, or less so that at most `rows_max` rows are read: a share to each queue by its lag."""
    lags = {key: max(0, end[key] - start.get(key, 0)) for key in end}
    total = sum(lags.values())
    if rows_max is None or total <= rows_max:
        return {key: max(end[key], start.get(key, 0)) for key in end}
    limited, taken, seen = {}, 0, 0
    for key in sorted(end):  # running sums: the shares add up to rows_max exactly
        seen += lags[key]
        upto = rows_max * seen // total
        limited[key] = start.get(key, 0) + upto - taken
        taken = upto
    return limited


def check_starts(start: Offsets, end: Offsets, options: Options) -> None:
    """Reports a read that begins behind the end of a queue."""
    for key in sorted(start):
        if start[key] > end.get(key, start[key]):
            text = f"the read of {key} begins at {start[key]}, behind its end at {end[key]}"
            no_match(options, text, log.warning)


def check_available(
    start: Offsets, end: Offsets, first: Offsets, fail: bool, warn: Callable[[str], Any]
) -> Offsets:
    """`start` moved to what still exists; DataLoss instead if `fail` is set."""
    moved = dict(start)
    for key, offset in start.items():
        lost_to = min(first.get(key, offset), end.get(key, offset))
        if offset < lost_to:
            text = (
                f"{lost_to - offset} messages of {key} are gone: offsets {offset} to {lost_to - 1} "
                f"were asked for, the first one kept is {first[key]}"
            )
            if fail:
                raise DataLoss(f"{text}; set failOnDataLoss=false to continue without them")
            warn(text)
            moved[key] = lost_to
    return moved
