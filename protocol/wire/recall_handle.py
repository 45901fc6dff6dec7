"""The handle by which a client recalls a timer: base64 of `v1 topic broker time unique-key`."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

_VERSION: Final = "v1"


class RecallHandle(NamedTuple):
    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str


def encode(topic: str, broker_name: str, deliver_ms: str, unique_key: str) -> str:
    text = " ".join((_VERSION, topic, broker_name, deliver_ms, unique_key))
    return urlsafe_b64encode(text.encode()).decode()


def decode(handle: str) -> RecallHandle:
    """The parts of a handle; ValueError when it is malformed."""
    try:
        raw = urlsafe_b64decode(handle.encode() + b"=" * (-len(handle) % 4))
        version, topic, broker_name, deliver_ms, unique_key = raw.decode().split(" ", 4)
        if version != _VERSION:
            raise ValueError(f"version {version}")
        return RecallHandle(topic, broker_name, int(deliver_ms), unique_key)
    except (ValueError, binascii.Error, UnicodeError):
        raise ValueError("recall handle is invalid") from None
