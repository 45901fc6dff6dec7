"""A group's relation to a message: its rights, subscription, progress and members."""

from collections.abc import Iterable, Mapping
from typing import Final

from aerobee.broker.handlers.context import Broker
from aerobee.broker.services.clients.heartbeats import BROADCASTING
from aerobee.broker.services.clients.subscription import Subscription
from aerobee.broker.services.topics.config import READ
from aerobee.broker.services.why.in_force import filter_of, match
from aerobee.broker.services.why.samples import passed_between
from aerobee.protocol.files.record import StoredMessage
from aerobee.protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, retry_topic
from aerobee.protocol.wire.message_facts import Group, Member, Reset, Standing

MEMBERS_MAX: Final = 64  # that are named


def groups_to_report(broker: Broker, topic: str, messages: Iterable[StoredMessage]) -> list[str]:
    """The groups that read the topic, have read it, or have returned the message for a retry."""
    found = {
        *broker.offsets.groups_of(topic),
        *broker.clients.groups_subscribing(topic),
        *broker.history.groups_of(topic),
    }
    for message in messages:
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if message.topic.startswith(prefix):
                found.add(message.topic.removeprefix(prefix))
    known = broker.groups
    return sorted(name for name in found if not is_system_group(name) and known.find(name))


def group_facts(broker: Broker, name: str, topic: str, messages: list[StoredMessage]) -> Group:
    config = broker.groups.find(name)
    online = broker.clients.consumer_group(name)
    left_at, left_by = broker.history.left(name)
    facts = Group(
        group=name,
        is_known=config is not None,
        consume_enabled=config is None or config.consume_enable,
        retry_max=None if config is None else config.retry_max_times,
        left_at=left_at if online is None else None,
        left_by=left_by if online is None else "",
        standings=[
            standing(broker, name, message)
            for message in messages
            if message.topic in (topic, retry_topic(name))
        ],
    )
    if online is not None:
        facts.broadcasts = online.message_model == BROADCASTING
        facts.subscribes = topic in online.subscriptions
        facts.members = [
            Member(client_id=member.client_id, address=member.connection.name)
            for member in list(online.members.values())[:MEMBERS_MAX]
        ]
        facts.conflict = _conflict(online.conflicts.get(topic, {}), messages)
    return facts


def _conflict(views: Mapping[str, Subscription | None], messages: list[StoredMessage]) -> list[str]:
    """The members' subscriptions, if they differ and not all of them select the message."""
    properties = messages[0].property_map()
    wanted = [
        view is not None and match(view.expression_type, view.expression, properties)[0]
        for view in views.values()
    ]
    if all(wanted):
        return []
    return [
        f"{client_id} wants {'nothing' if view is None else view.expression}"
        for client_id, view in views.items()
    ][:MEMBERS_MAX]


def standing(broker: Broker, group: str, message: StoredMessage) -> Standing:
    """How far the group is in the queue of one copy."""
    topic, queue_id, offset = message.topic, message.queue_id, message.queue_offset
    key = f"{topic}@{group}"
    committed, pulled, puller = broker.offsets.progress(key).get(queue_id, (-1, -1, ""))
    noted = broker.history.queue(key, queue_id)
    began = noted.get("began")
    facts = Standing(
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        committed=committed,
        pulled=pulled if pulled >= 0 else None,
        puller=puller or str(noted.get("puller", "")),
        max_offset=broker.store.max_offset(topic, queue_id),
        refusal=_refusal(broker, group, topic, queue_id),
        began=(began[0], began[1]) if began else None,
        passed=passed_between(noted.get("commits", []), offset),
        resets=[
            Reset(at=row["at"], was=row["was"], to=row["to"], by=str(row.get("by", "")))
            for row in broker.history.resets(key, queue_id)
        ],
    )
    if not topic.startswith(RETRY_PREFIX):  # retries come to their group whatever it selects
        changes = broker.history.subscriptions(key)
        facts.filter = filter_of(changes, queue_id, offset, message.property_map())
    return facts


def _refusal(broker: Broker, group: str, topic: str, queue_id: int) -> str:
    """Why pulls of this queue are refused; nothing when they are not."""
    if not broker.settings.broker_permission & READ:
        return f"the broker may not be read (brokerPermission={broker.settings.broker_permission})"
    config = broker.topics.get(topic)
    if config is None:
        return f"topic {topic} does not exist any more"
    if not config.perm & READ:
        return f"topic {topic} may not be read (its perm is {config.perm})"
    if queue_id >= config.read_queue_nums:
        return f"topic {topic} has {config.read_queue_nums} queues to read; this one is {queue_id}"
    if broker.groups.is_forbidden(group, topic):
        return f"an operator forbade group {group} to read topic {topic}"
    return ""
