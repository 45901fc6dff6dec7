"""Checks that a pull is allowed, in RocketMQ's order, and finds what it selects."""

from typing import NoReturn

from aerobee.broker.base import resource_names
from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.context import Broker
from aerobee.broker.services.clients.consumer_group import ConsumerGroup
from aerobee.broker.services.clients.heartbeats import BROADCASTING, CONSUME_PASSIVELY
from aerobee.broker.services.clients.subscription import SQL92
from aerobee.broker.services.filters.selection import ALL, Selection, by_expression, by_heartbeat
from aerobee.broker.services.topics.config import READ
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.headers import PULL_SUBSCRIPTION, PullRequest


def selection_of(broker: Broker, fields: PullRequest, is_lite: bool) -> Selection:
    """What the pull selects; raises Refused if it is not allowed."""
    settings = broker.settings
    if not broker.replication.is_settled:
        raise Refused(
            ResponseCode.SYSTEM_BUSY,
            "this replica does not know yet which of its messages are confirmed: pull from the "
            "master, or again in a moment",
        )
    if not settings.broker_permission & READ:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the broker[{settings.broker_name}] pulling message is forbidden "
            f"(brokerPermission={settings.broker_permission})",
        )
    if is_lite and not settings.lite_pull_message_enable:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            "lite pull is forbidden on this broker (litePullMessageEnable=false)",
        )
    group = fields.consumer_group
    config = broker.groups.get(group)
    if config is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            resource_names.group_problem(group)
            or f"subscription group [{group}] does not exist and may not be created",
        )
    if not config.consume_enable:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"subscription group no permission, {group}: consumeEnable is false",
        )
    topic = broker.topics.get(fields.topic)
    if (
        topic is None
        or not topic.perm & READ
        or not 0 <= fields.queue_id < topic.read_queue_nums
        or broker.groups.is_forbidden(group, fields.topic)
    ):
        _refuse_topic(broker, fields)
    if fields.sys_flag & PULL_SUBSCRIPTION:
        if fields.expression_type == SQL92:
            _check_sql(broker)
        selection = by_expression(fields.subscription, fields.expression_type)
    else:
        selection = _heartbeat_selection(broker, fields, config.consume_broadcast_enable)
    if (
        selection.matches_record is not None
        and resource_names.is_retry_topic(fields.topic)
        and not settings.filter_support_retry
    ):
        return ALL
    return selection


def _refuse_topic(broker: Broker, fields: PullRequest) -> NoReturn:
    """Report the first problem of the topic, for this group and queue."""
    topic = fields.topic
    config = broker.topics.get(topic)
    if config is None:
        raise Refused(
            ResponseCode.TOPIC_NOT_EXIST,
            resource_names.topic_problem(topic) or f"topic[{topic}] not exist, apply first please!",
        )
    if not config.readable:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the topic[{topic}] pulling message is forbidden (its perm is {config.perm})",
        )
    if broker.groups.is_forbidden(fields.consumer_group, topic):
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"group {fields.consumer_group} may not read topic {topic}: an operator forbade it",
        )
    raise Refused(
        ResponseCode.INVALID_PARAMETER,
        f"queueId[{fields.queue_id}] is illegal: topic {topic} has "
        f"{config.read_queue_nums} queues to read, numbered from 0",
    )


def _check_sql(broker: Broker) -> None:
    if not broker.settings.enable_property_filter:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "the broker does not support consumer to filter message by SQL92: "
            "enablePropertyFilter is false",
        )


def _heartbeat_selection(broker: Broker, fields: PullRequest, broadcast_allowed: bool) -> Selection:
    """The selection by the subscription in the group's heartbeats."""
    name, topic = fields.consumer_group, fields.topic
    group = broker.clients.consumer_group(name)
    if group is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's group info not exist: no heartbeat of group {name} has come",
        )
    _check_group(broker, group, broadcast_allowed)
    subscription = group.subscriptions.get(topic)
    if subscription is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's subscription not exist: group {name} has not subscribed {topic}",
        )
    if subscription.version < fields.sub_version:
        group.outdated = True
        raise Refused(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            f"the consumer's subscription not latest: that of group {name} to {topic} is "
            f"older than the pull's; the next heartbeat brings it",
        )
    if subscription.expression_type == SQL92:
        _check_sql(broker)
    return by_heartbeat(subscription, broker.filters, name, fields.sub_version)


def _check_group(broker: Broker, group: ConsumerGroup, broadcast_allowed: bool) -> None:
    if group.message_model == BROADCASTING and not broadcast_allowed:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{group.name}] can not consume by broadcast way: "
            f"consumeBroadcastEnable is false",
        )
    if broker.settings.reject_pull_consumer_enable and group.consume_type != CONSUME_PASSIVELY:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"group {group.name} pulls by itself, which rejectPullConsumerEnable forbids",
        )
