"""Aerobee's Python SDK: `async with connect("mq://localhost:9876") as mq`.

What is named here is the public API. It is imported on first use, so that the broker, which lives
in the same package, starts without the SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee.client.admin.admin import Admin as Admin
    from aerobee.client.client import Client as Client
    from aerobee.client.client import connect as connect
    from aerobee.client.consuming.consumer import Consumer as Consumer
    from aerobee.client.consuming.options import ConsumerOptions as ConsumerOptions
    from aerobee.client.errors import AerobeeError as AerobeeError
    from aerobee.client.errors import BrokerBusy as BrokerBusy
    from aerobee.client.errors import BrokerError as BrokerError
    from aerobee.client.errors import Closed as Closed
    from aerobee.client.errors import ConnectFailed as ConnectFailed
    from aerobee.client.errors import ConnectionLost as ConnectionLost
    from aerobee.client.errors import FilterRefused as FilterRefused
    from aerobee.client.errors import GroupNotFound as GroupNotFound
    from aerobee.client.errors import MessageRefused as MessageRefused
    from aerobee.client.errors import Misuse as Misuse
    from aerobee.client.errors import NoPermission as NoPermission
    from aerobee.client.errors import NoRoute as NoRoute
    from aerobee.client.errors import NotFound as NotFound
    from aerobee.client.errors import Overloaded as Overloaded
    from aerobee.client.errors import Reject as Reject
    from aerobee.client.errors import RequestTimeout as RequestTimeout
    from aerobee.client.errors import SendsFailed as SendsFailed
    from aerobee.client.errors import ServiceUnavailable as ServiceUnavailable
    from aerobee.client.errors import TopicNotFound as TopicNotFound
    from aerobee.client.errors import Unconfirmed as Unconfirmed
    from aerobee.client.message import Durability as Durability
    from aerobee.client.message import Message as Message
    from aerobee.client.message import Receipt as Receipt
    from aerobee.client.producing.accumulator import Delivery as Delivery
    from aerobee.client.producing.producer import BufferedProducer as BufferedProducer
    from aerobee.client.producing.producer import Producer as Producer
    from aerobee.client.producing.transactions import Half as Half
    from aerobee.client.producing.transactions import TransactionProducer as TransactionProducer
    from aerobee.client.producing.transactions import Verdict as Verdict
    from aerobee.client.serializers import JSON as JSON
    from aerobee.client.serializers import MSGPACK as MSGPACK
    from aerobee.client.serializers import Serializer as Serializer
    from aerobee.client.serializers import json_of as json_of
    from aerobee.client.serializers import msgpack_of as msgpack_of
    from aerobee.client.transport.remoting import ConnectionEvent as ConnectionEvent
    from aerobee.client.why.answer import GroupVerdict as GroupVerdict
    from aerobee.client.why.answer import LifeEvent as LifeEvent
    from aerobee.client.why.answer import Why as Why
    from aerobee.client.why.answer import WhyVerdict as WhyVerdict
    from aerobee.client.worker import Worker as Worker
    from aerobee.protocol.json.fastjson import MessageQueue as MessageQueue

_MODULES = {
    "aerobee.client.producing.accumulator": ("Delivery",),
    "aerobee.client.admin.admin": ("Admin",),
    "aerobee.client.client": ("Client", "connect"),
    "aerobee.client.consuming.consumer": ("Consumer",),
    "aerobee.client.errors": (
        *("AerobeeError", "BrokerBusy", "BrokerError", "Closed", "ConnectFailed"),
        *("ConnectionLost", "FilterRefused", "GroupNotFound", "MessageRefused", "Misuse"),
        *("NoPermission", "NoRoute", "NotFound", "Overloaded", "Reject"),
        *("RequestTimeout", "SendsFailed"),
        *("ServiceUnavailable", "TopicNotFound", "Unconfirmed"),
    ),
    "aerobee.client.message": ("Durability", "Message", "Receipt"),
    "aerobee.client.consuming.options": ("ConsumerOptions",),
    "aerobee.client.producing.producer": ("BufferedProducer", "Producer"),
    "aerobee.client.producing.transactions": ("Half", "TransactionProducer", "Verdict"),
    "aerobee.client.serializers": ("JSON", "MSGPACK", "Serializer", "json_of", "msgpack_of"),
    "aerobee.client.transport.remoting": ("ConnectionEvent",),
    "aerobee.client.why.answer": ("GroupVerdict", "LifeEvent", "Why", "WhyVerdict"),
    "aerobee.client.worker": ("Worker",),
    "aerobee.protocol.json.fastjson": ("MessageQueue",),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_WHERE]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'aerobee' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
