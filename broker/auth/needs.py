"""What a request needs: the resources that it names, and the actions that the user must have there.

A need reads the names from an ext field, from the body, or from the stored record that the request
points to. Names of retry and dead-letter topics stand for their group.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aerobee.broker.auth.model import (
    CLUSTER,
    GROUP,
    PUB,
    SUB,
    TOPIC,
    UPDATE,
    Resource,
)
from aerobee.broker.base.resource_names import may_be_sent_to
from aerobee.broker.services.clients.heartbeats import parse_heartbeat
from aerobee.broker.services.redelivery.put_again import message_at
from aerobee.broker.store.message_store import MessageStore
from aerobee.protocol.files.ids import parse_offset_message_id
from aerobee.protocol.files.properties import REAL_TOPIC
from aerobee.protocol.json import fastjson
from aerobee.protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    TEMPLATE_TOPIC,
    TRACE_DATA_PREFIX,
    TRACE_TOPIC,
)
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import Header, Int64, decode_ext

TopicOfRecord = Callable[[int], str | None]  # the topic of the record at a physical offset
# The topic of an open half message whose file has gone, by its former physical and queue offset.
TopicOfCarried = Callable[[int, int], str | None]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and what is needed to see which resources it names."""

    command: Command
    cluster: str
    topic_of_record: TopicOfRecord
    topic_of_carried: TopicOfCarried


@dataclass(frozen=True, slots=True)
class Ask:
    """One resource, and the actions of which the user must have one."""

    resource: Resource
    actions: frozenset[str]


Need = Callable[[Asked], Iterator[Ask]]


def of_topic(name: str, *actions: str) -> Ask:
    """A topic; retry and dead-letter topics belong to their group, and can only be consumed."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            wanted = {SUB if action == PUB else action for action in actions}
            return Ask(Resource(GROUP, name.removeprefix(prefix)), frozenset(wanted))
    return Ask(Resource(TOPIC, name), frozenset(actions))


def of_group(name: str, *actions: str) -> Ask:
    return Ask(Resource(GROUP, name), frozenset(actions))


def is_trace(topic: str) -> bool:
    return topic == TRACE_TOPIC or topic.startswith(TRACE_DATA_PREFIX)


def is_kept_by_broker(topic: str) -> bool:
    """Whether messages of all topics pass through it: super users only."""
    return topic == TEMPLATE_TOPIC or not may_be_sent_to(topic)


def topic(field: str, *actions: str) -> Need:
    """The topic that an ext field names; an empty name if the field is missing."""
    return lambda asked: iter((of_topic(asked.command.ext.get(field, ""), *actions),))


def group(field: str, *actions: str) -> Need:
    return lambda asked: iter((of_group(asked.command.ext.get(field, ""), *actions),))


def topic_if_named(field: str, *actions: str) -> Need:
    return lambda asked: topic(field, *actions)(asked) if asked.command.ext.get(field) else iter(())


def topics_if_named(field: str, *actions: str) -> Need:
    """Topics that an ext field names, with semicolons between; each once."""
    return lambda asked: (
        of_topic(name, *actions)
        for name in dict.fromkeys(asked.command.ext.get(field, "").split(";"))
        if name
    )


def group_if_named(field: str, *actions: str) -> Need:
    return lambda asked: group(field, *actions)(asked) if asked.command.ext.get(field) else iter(())


def cluster(*actions: str) -> Need:
    return lambda asked: iter((Ask(Resource(CLUSTER, asked.cluster), frozenset(actions)),))


def topic_or_cluster(field: str, *actions: str) -> Need:
    """A topic, or the whole cluster where none is named."""
    return lambda asked: (
        topic(field, *actions)(asked) if asked.command.ext.get(field) else cluster(*actions)(asked)
    )


class _AtOffset(Header):
    offset: Int64


class _OfTransaction(Header):
    commit_log_offset: Int64
    tran_state_table_offset: Int64


def record_at_offset(*actions: str) -> Need:
    """The topic of the record at `offset`, whatever topic the request names."""
    return lambda asked: _record(asked, decode_ext(asked.command.ext, _AtOffset).offset, actions)


def record_of_transaction(asked: Asked) -> Iterator[Ask]:
    fields = decode_ext(asked.command.ext, _OfTransaction)
    yield from _record(asked, fields.commit_log_offset, (PUB,))
    name = asked.topic_of_carried(fields.commit_log_offset, fields.tran_state_table_offset)
    if name is not None:
        yield of_topic(name, PUB)


def record_by_id(*actions: str) -> Need:
    def asks(asked: Asked) -> Iterator[Ask]:
        try:
            _, offset = parse_offset_message_id(asked.command.ext.get("msgId", ""))
        except ValueError:
            return iter(())  # the handler says what is wrong
        return _record(asked, offset, actions)

    return asks


def _record(asked: Asked, offset: int, actions: tuple[str, ...]) -> Iterator[Ask]:
    """Nothing is needed if there is no such record: the handler reports that."""
    name = asked.topic_of_record(offset)
    if name is not None:
        yield of_topic(name, *actions)


def heartbeat(asked: Asked) -> Iterator[Ask]:
    """Every group and topic that the client wants to consume."""
    for consumer in parse_heartbeat(asked.command.body).consumers:
        yield of_group(consumer.group, SUB)
        for subscription in consumer.subscriptions:
            yield of_topic(subscription.topic, SUB)


def body_names(
    topic_key: str = "", group_key: str = "", list_key: str = "", *, actions: tuple[str, ...]
) -> Need:
    """Names in a JSON body, or in each object of a list in it; each once."""

    def asks(asked: Asked) -> Iterator[Ask]:
        body = _body(asked)
        entries = body.get(list_key) if list_key else [body]
        listed = entries if isinstance(entries, list) else []
        objects = [entry for entry in listed if isinstance(entry, dict)]
        if topic_key:
            for name in dict.fromkeys([str(each.get(topic_key) or "") for each in objects]):
                yield of_topic(name, *actions)
        if group_key:
            for name in dict.fromkeys([str(each.get(group_key) or "") for each in objects]):
                yield of_group(name, *actions)

    return asks


def chunks_of_commit(asked: Asked) -> Iterator[Ask]:
    """The topics of the prepared rows that SINK_COMMIT publishes. Without any it only notes the
    batch as committed: whoever may remove a query from the ledger may do that, too."""
    rows = _body(asked).get("chunks")
    if rows == []:
        yield from cluster(UPDATE)(asked)
    for row in rows if isinstance(rows, list) else ():
        try:
            offset = int(row[3])
        except (TypeError, ValueError, LookupError):
            continue  # the handler refuses it
        yield from _record(asked, offset, (PUB,))


def _body(asked: Asked) -> Mapping[Any, Any]:
    value = fastjson.loads_request(asked.command.body) if asked.command.body else {}
    return value if isinstance(value, dict) else {}


def topics_of_records(store: MessageStore) -> TopicOfRecord:
    """The topic of a stored record; of a pending one, the topic that it will be delivered to."""

    def topic_at(physical_offset: int) -> str | None:
        if store.commit is not None and physical_offset >= store.committed_offset:
            store.commit.step()  # in the transient store pool; the handler may read it from there
        message = message_at(store, physical_offset) if physical_offset >= 0 else None
        if message is None:
            return None
        if may_be_sent_to(message.topic):
            return message.topic
        return message.property(REAL_TOPIC) or message.topic

    return topic_at
