"""Queue assignment by the broker (QUERY_ASSIGNMENT), in PULL mode; POP is refused."""

from collections.abc import Callable
from typing import Any, Final

from aerobee.broker.base import resource_names
from aerobee.broker.base.refused import Refused
from aerobee.broker.base.resource_names import is_retry_topic
from aerobee.broker.handlers.common import Handlers, known_topic, read_body, success
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Request
from aerobee.broker.services.clients.heartbeats import BROADCASTING
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

# POP_MESSAGE, ACK, PEEK, CHANGE_INVISIBLETIME, NOTIFICATION, POLLING_INFO, BATCH_ACK
POP_CODES: Final = (200050, 200051, 200052, 200053, 200054, 200055, 200151)
_NO_POP: Final = (
    "POP consumption is not supported by this broker; use a push, pull or lite pull consumer"
)


def average(client: int, clients: int, queues: int) -> list[int]:
    """RocketMQ's AVG: adjacent queues; the first clients get one more if it does not divide."""
    share, rest = divmod(queues, clients)
    start = client * share + min(client, rest)
    return list(range(start, start + share + (client < rest)))


def average_by_circle(client: int, clients: int, queues: int) -> list[int]:
    """RocketMQ's AVG_BY_CIRCLE: dealt out in turn."""
    return list(range(client, queues, clients))


STRATEGIES: Final[dict[str, Callable[[int, int, int], list[int]]]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
}


def query_assignment(broker: Broker, request: Request) -> Command:
    """The queues of a topic that are assigned to this client."""
    body = read_body(request)
    name, group = _text(body, "topic"), _text(body, "consumerGroup")
    if broker.settings.namesrv_addr:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "queues of several brokers are shared by the clients themselves (clientRebalance)",
        )
    topic = broker.topics.get(name)
    numbers = list(range(topic.read_queue_nums if topic is not None else 0))
    if body.get("messageModel") not in (BROADCASTING, 0):
        numbers = _share(broker, group, _text(body, "clientId"), body, numbers)
    assignments = [
        {
            "messageQueue": MessageQueue(name, broker.settings.broker_name, number),
            "mode": "PULL",
        }
        for number in numbers
    ]
    return success(request, {"messageQueueAssignments": assignments})


def _share(
    broker: Broker, group: str, client_id: str, body: dict[Any, Any], queues: list[int]
) -> list[int]:
    """This client's share; none for an unknown strategy, as in RocketMQ."""
    strategy = STRATEGIES.get(str(body.get("strategyName") or "AVG"))
    members = broker.clients.client_ids(group)
    if strategy is None or client_id not in members:
        return []
    return strategy(members.index(client_id), len(members), len(queues))


def set_request_mode(broker: Broker, request: Request) -> Command:
    """Every group is in PULL mode, even one that does not exist yet; POP is not supported."""
    body = read_body(request)
    topic = _text(body, "topic")
    if is_retry_topic(topic):
        raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    known_topic(broker, topic)
    if problem := resource_names.group_problem(_text(body, "consumerGroup")):
        raise Refused(ResponseCode.INVALID_PARAMETER, problem)
    if body.get("mode") not in ("PULL", 0, "0", None):
        raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _NO_POP)
    return success(request)


def all_request_modes(broker: Broker, request: Request) -> Command:
    return success(request, {"messageRequestModeMap": {}})


def refuse_pop(broker: Broker, request: Request) -> Command:
    raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _NO_POP)


def _text(body: dict[Any, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the request's body has no {key}")
    return value


HANDLERS: Handlers = {
    RequestCode.QUERY_ASSIGNMENT: query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_request_mode,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: all_request_modes,
    **dict.fromkeys(POP_CODES, refuse_pop),
}
