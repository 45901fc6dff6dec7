"""A stored message as programs get it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from aerobee.client.errors import AerobeeError

if TYPE_CHECKING:
    from aerobee.client.message import Message


def message_json(message: Message) -> dict[str, Any]:
    """All of a message; the body as text, or base64 where it is none."""
    found: dict[str, Any] = {
        "topic": message.topic,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "stored_at": message.stored_at,
        "born_at": message.born_at,
        "reconsume_times": message.reconsume_times,
        "tag": message.tag,
        "keys": message.keys,
        "properties": message.properties,
    }
    try:
        found["body"] = message.body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(message.body).decode()
    except AerobeeError as error:
        found["body_error"] = str(error)
        found["body_base64"] = base64.b64encode(bytes(message.stored.body)).decode()
    return found
