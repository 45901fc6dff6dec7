"""Administration of consumers and producers: who is online, who reads what, how far they are."""

from collections.abc import Generator
from datetime import datetime
from typing import Any

from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import Handlers, in_slices, known_topic, success
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Request
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.admin_headers import (
    ConsumerGroupHeader,
    ConsumeStats,
    ConsumeStatsInBroker,
    GroupHeader,
    ProducerConnections,
    SubscriptionOfGroup,
    TopicAndGroup,
    TopicHeader,
)
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import decode_ext


def consumer_connections(broker: Broker, request: Request) -> Command:
    """A group's members and subscriptions; `conflicts` is ours: what members want differently."""
    name = decode_ext(request.command.ext, ConsumerGroupHeader).consumer_group
    group = broker.clients.consumer_group(name)
    if group is None:
        raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    body = {
        "connectionSet": [member.to_json() for member in group.members.values()],
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": {
            topic: subscription.to_json() for topic, subscription in group.subscriptions.items()
        },
    }
    if group.conflicts:
        body["conflicts"] = group.conflicts_json()
    return success(request, body)


def producer_connections(broker: Broker, request: Request) -> Command:
    name = decode_ext(request.command.ext, ProducerConnections).producer_group
    members = broker.clients.producers_of(name)
    if not members:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    return success(request, {"connectionSet": [member.to_json() for member in members]})


def all_producers(broker: Broker, request: Request) -> Command:
    now_ms, now = broker.clock.now_ms(), broker.clock.monotonic()
    data = {
        group: [
            {
                "clientId": member.client_id,
                "language": member.language,
                "lastUpdateTimestamp": now_ms - round((now - member.seen_at) * 1000),
                "remoteIP": member.connection.peer[0],
                "version": member.version,
            }
            for member in members
        ]
        for group, members in broker.clients.producer_groups().items()
    }
    return success(request, {"data": data})


def consume_stats(broker: Broker, request: Request) -> Command:
    """How far a group is in each queue of its topics."""
    header = decode_ext(request.command.ext, ConsumeStats)
    group = header.consumer_group
    if header.topic_list:
        # Each once, as a list that repeats one a million times would stop the loop for minutes.
        topics = [topic for topic in dict.fromkeys(header.topic_list.split(";")) if topic]
    else:
        topics = [header.topic] if header.topic else broker.offsets.topics_of(group)
        topics = _subscribed(broker, group, topics)
    body: dict[str, Any] = {"consumeTps": 0.0, "offsetTable": {}}
    for topic in topics:
        config = broker.topics.get(topic)
        if config is not None:
            body["offsetTable"] |= _progress(broker, group, topic, config.read_queue_nums)
            body["consumeTps"] += broker.stats.get_rate(topic, group)
    return success(request, body)


def _subscribed(broker: Broker, group: str, topics: list[str]) -> list[str]:
    """Without the topics that a group online does not subscribe any more."""
    online = broker.clients.consumer_group(group)
    if online is None or not online.subscriptions:
        return topics
    return [topic for topic in topics if topic in online.subscriptions]


def _progress(
    broker: Broker, group: str, topic: str, queue_nums: int
) -> dict[MessageQueue, dict[str, int]]:
    table = {}
    for queue_id in range(queue_nums):
        committed = max(0, broker.offsets.query(group, topic, queue_id))
        seen = broker.store.store_time(topic, queue_id, committed - 1) if committed else 0
        table[MessageQueue(topic, broker.settings.broker_name, queue_id)] = {
            "brokerOffset": max(0, broker.store.max_offset(topic, queue_id)),
            "consumerOffset": committed,
            "lastTimestamp": max(0, seen),
            "pullOffset": max(committed, broker.offsets.query_pull(group, topic, queue_id)),
        }
    return table


def broker_consume_stats(broker: Broker, request: Request) -> None:
    """The progress of every group."""
    only_ordered = decode_ext(request.command.ext, ConsumeStatsInBroker).is_order
    in_slices(request, _progress_of_all(broker, request, only_ordered))


def _progress_of_all(
    broker: Broker, request: Request, only_ordered: bool
) -> Generator[None, None, Command]:
    """With thousands of groups this takes seconds, and so does the text, which is made in parts."""
    listed: list[bytes] = []
    behind = in_flight = 0
    topics: dict[str, list[str]] = {}
    for topic, group in sorted(broker.offsets.pairs()):
        topics.setdefault(group, []).append(topic)
    for group in list(broker.groups.all()):
        stats = []
        for topic in _subscribed(broker, group, topics.get(group, [])):
            config = broker.topics.get(topic)
            if config is None or (only_ordered and not config.order):
                continue
            table = _progress(broker, group, topic, config.write_queue_nums)
            stats.append({"consumeTps": broker.stats.get_rate(topic, group), "offsetTable": table})
            for row in table.values():
                behind += row["brokerOffset"] - row["consumerOffset"]
                in_flight += row["pullOffset"] - row["consumerOffset"]
            yield
        listed.append(fastjson.dumps({group: stats}))
        yield
    connection = request.connection
    address = broker.addresses.route_address(connection.peer, connection.local)
    rest = {"brokerAddr": address, "totalDiff": behind, "totalInflightDiff": in_flight}
    all_listed = b',"consumeStatsList":[' + b",".join(listed) + b"]}"
    return request.command.answer(ResponseCode.SUCCESS, {}, fastjson.dumps(rest)[:-1] + all_listed)


def topic_consumers(broker: Broker, request: Request) -> Command:
    """The groups that read a topic now, or have read it."""
    topic = decode_ext(request.command.ext, TopicHeader).topic
    groups = {*broker.clients.groups_subscribing(topic), *broker.offsets.groups_of(topic)}
    return success(request, {"groupList": sorted(groups)})


def topics_of_consumer(broker: Broker, request: Request) -> Command:
    """The topics in which a group has an offset."""
    group = decode_ext(request.command.ext, GroupHeader).group
    connection = request.connection
    return success(
        request,
        {
            "brokerAddr": broker.addresses.route_address(connection.peer, connection.local),
            "topicList": broker.offsets.topics_of(group),
        },
    )


def subscription_of_consumer(broker: Broker, request: Request) -> Command:
    header = decode_ext(request.command.ext, SubscriptionOfGroup)
    found = broker.clients.subscription(header.group, header.topic) if header.topic else None
    return success(
        request,
        {
            "group": header.group,
            "subscriptionData": found.to_json() if found else None,
            "topic": header.topic,
        },
    )


def consume_time_span(broker: Broker, request: Request) -> Command:
    """The times between which each queue's messages lie, and where the group is in them."""
    header = decode_ext(request.command.ext, TopicAndGroup)
    config = known_topic(broker, header.topic)
    spans = [
        _time_span(broker, header.group, header.topic, queue_id)
        for queue_id in range(config.write_queue_nums)
    ]
    return success(request, {"consumeTimeSpanSet": spans})


def _time_span(broker: Broker, group: str, topic: str, queue_id: int) -> dict[str, Any]:
    store = broker.store
    end = store.max_offset(topic, queue_id)
    first_ms = store.earliest_time(topic, queue_id)
    last_ms = store.store_time(topic, queue_id, end - 1) if end > 0 else -1
    committed = broker.offsets.query(group, topic, queue_id)
    consumed_ms = store.store_time(topic, queue_id, committed - 1) if committed > 0 else first_ms
    delay_ms = 0
    if committed < end:
        next_ms = store.store_time(topic, queue_id, max(0, committed))
        delay_ms = max(0, broker.clock.now_ms() - next_ms) if next_ms > 0 else 0
    return {
        "consumeTimeStamp": consumed_ms,
        "consumeTimeStampStr": _time_text(consumed_ms),
        "delayTime": delay_ms,
        "maxTimeStamp": last_ms,
        "maxTimeStampStr": _time_text(last_ms),
        "messageQueue": MessageQueue(topic, broker.settings.broker_name, queue_id),
        "minTimeStamp": first_ms,
        "minTimeStampStr": _time_text(first_ms),
    }


def _time_text(moment_ms: int) -> str:
    """yyyy-MM-dd HH:mm:ss:SSS in local time."""
    moment = datetime.fromtimestamp(max(0, moment_ms) / 1000)
    return f"{moment:%Y-%m-%d %H:%M:%S}:{moment.microsecond // 1000:03d}"


HANDLERS: Handlers = {
    RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: all_producers,
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: broker_consume_stats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topic_consumers,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: topics_of_consumer,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: subscription_of_consumer,
    RequestCode.QUERY_CONSUME_TIME_SPAN: consume_time_span,
}
