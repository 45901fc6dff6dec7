"""The C face of the C++ client: the few structures and functions of ``librocketmq.so`` we use.

Arguments go as ctypes takes them by itself: handles are ``c_void_p``, texts are bytes, numbers are
``int``. Only what differs from an ``int`` result is declared.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_int, c_longlong, c_void_p
from typing import Any

SEND_STATUS = ("SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")
PULL_STATUS = ("FOUND", "NO_NEW_MSG", "NO_MATCHED_MSG", "OFFSET_ILLEGAL", "BROKER_TIMEOUT")
BROADCASTING = 0
CONSUME_SUCCESS, RECONSUME_LATER = 0, 1


class Handle(c_void_p):
    """A pointer that stays one: ctypes turns a plain ``c_void_p`` result into a number."""


class SendResult(Structure):
    _fields_ = (("status", c_int), ("id", c_char * 256), ("offset", c_longlong))


class SendError(Structure):
    _fields_ = (
        ("code", c_int),
        ("line", c_int),
        ("file", c_char * 256),
        ("text", c_char * 512),
        ("kind", c_char * 128),
    )


class Queue(Structure):
    _fields_ = (("topic", c_char * 512), ("broker", c_char * 256), ("id", c_int))


class PullResult(Structure):
    _fields_ = (
        ("status", c_int),
        ("next", c_longlong),
        ("min", c_longlong),
        ("max", c_longlong),
        ("messages", POINTER(Handle)),
        ("size", c_int),
        ("data", c_void_p),
    )


OnSent = CFUNCTYPE(None, SendResult)
OnSendError = CFUNCTYPE(None, SendError)
OnMessage = CFUNCTYPE(c_int, c_void_p, c_void_p)
SelectQueue = CFUNCTYPE(c_int, c_int, c_void_p, c_void_p)

_RESULTS: dict[str, Any] = {
    "CreateMessage": Handle,
    "CreateBatchMessage": Handle,
    "CreateProducer": Handle,
    "CreatePushConsumer": Handle,
    "CreatePullConsumer": Handle,
    "Pull": PullResult,
    "GetLatestErrorMessage": c_char_p,
    "GetMessageTopic": c_char_p,
    "GetMessageTags": c_char_p,
    "GetMessageKeys": c_char_p,
    "GetMessageBody": c_char_p,
    "GetMessageProperty": c_char_p,
    "GetMessageId": c_char_p,
    "GetMessageBornTimestamp": c_longlong,
    "GetMessageStoreTimestamp": c_longlong,
    "GetMessageQueueOffset": c_longlong,
}


def load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    for name, result in _RESULTS.items():
        getattr(library, name).restype = result
    return library
