"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: which client may consume a queue in order."""

from typing import Any, Final

from aerobee.broker.base import resource_names
from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import Handlers, read_body, success
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Request
from aerobee.broker.services.clients.heartbeats import CLIENT_ID_MAX
from aerobee.broker.services.config_files.config_file import as_int
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

QUEUES_MAX: Final = 65536
BROKER_NAME_MAX: Final = 255


def lock_batch(broker: Broker, request: Request) -> Command:
    group, client_id, queues = _read(request)
    # A queue that does not exist here is neither locked nor listed as locked in the answer.
    ours = [queue for queue in queues if _is_here(broker, queue)]
    held = broker.order_locks.lock(group, client_id, ours)
    return success(request, {"lockOKMQSet": held})


def unlock_batch(broker: Broker, request: Request) -> Command:
    group, client_id, queues = _read(request)
    broker.order_locks.unlock(group, client_id, queues)
    return success(request)


def _is_here(broker: Broker, queue: MessageQueue) -> bool:
    topic = broker.topics.get(queue.topic)
    if topic is None or len(queue.broker_name) > BROKER_NAME_MAX:
        return False
    return 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)


def _read(request: Request) -> tuple[str, str, list[MessageQueue]]:
    body = read_body(request)
    group = str(body.get("consumerGroup") or "")
    client_id = str(body.get("clientId") or "")
    if problem := resource_names.group_problem(group):
        raise Refused(ResponseCode.INVALID_PARAMETER, problem)
    if len(client_id) > CLIENT_ID_MAX:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"the request's clientId has {len(client_id)} characters; at most {CLIENT_ID_MAX} are "
            "taken",
        )
    entries = body.get("mqSet")
    entries = entries if isinstance(entries, list) else []
    if len(entries) > QUEUES_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"more than {QUEUES_MAX} queues at once")
    return group, client_id, [_queue(entry) for entry in entries if isinstance(entry, dict)]


def _queue(entry: dict[Any, Any]) -> MessageQueue:
    topic, broker_name = str(entry.get("topic") or ""), str(entry.get("brokerName") or "")
    return MessageQueue(topic, broker_name, as_int(entry.get("queueId"), -1))


HANDLERS: Handlers = {
    RequestCode.LOCK_BATCH_MQ: lock_batch,
    RequestCode.UNLOCK_BATCH_MQ: unlock_batch,
}
