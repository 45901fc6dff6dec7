"""A message as JSON for the pages: everything as text, truncated where long, and marked so."""

from __future__ import annotations

import base64
from typing import Any, Final

from aerobee.client.errors import AerobeeError
from aerobee.client.message import Message
from aerobee.protocol.files.copies import REPLAYED_FROM, SYSTEM_PROPERTIES

PREVIEW: Final = 160
BODY_SHOWN: Final = 64 << 10


def row_of(message: Message, *, bodies: bool) -> dict[str, Any]:
    """For a line of a table."""
    return {
        "id": message.message_id,
        "topic": message.stored.topic,
        "broker": message.broker,
        "queue": message.stored.queue_id,
        "offset": message.queue_offset,
        "stored": message.stored.store_timestamp,
        "tag": message.tag,
        "keys": message.keys,
        "size": len(message.stored.body),
        "preview": preview(message) if bodies else None,
        "offset_id": message.offset_message_id,
    }


def preview(message: Message) -> str:
    try:
        body = message.body
    except AerobeeError as error:
        return f"({error})"
    text = _as_text(body[: PREVIEW * 4], whole=len(body) <= PREVIEW * 4)
    if text is None:
        return body[: PREVIEW // 3].hex(" ")
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"


def _as_text(data: bytes, *, whole: bool) -> str | None:
    """The text, None if it is not text; a character split by the truncation is dropped."""
    for end in range(len(data), max(-1, len(data) - (1 if whole else 4)), -1):
        try:
            return data[:end].decode()
        except UnicodeDecodeError:
            continue
    return None


def all_of(message: Message, *, bodies: bool) -> dict[str, Any]:
    """For the page of one message."""
    own: dict[str, str] = {}
    system: dict[str, str] = {}
    for name, value in message.properties.items():
        is_system = name in SYSTEM_PROPERTIES and name != REPLAYED_FROM
        (system if is_system else own)[name] = value
    return row_of(message, bodies=bodies) | {
        "origin_topic": message.topic,
        "born": message.stored.born_timestamp,
        "reconsumed": message.reconsume_times,
        "failure": message.failure,
        "properties": own,
        "system": system,
        "body": body_of(message) if bodies else None,
    }


def body_of(message: Message) -> dict[str, Any]:
    """The body as text where it is text, else in base64; its first 64 KB."""
    try:
        body = message.body
    except AerobeeError as error:
        return {"error": str(error), "size": len(message.stored.body), "shown": 0}
    shown = body[:BODY_SHOWN]
    text = _as_text(shown, whole=len(shown) == len(body))
    found: dict[str, Any] = {"size": len(body), "shown": len(shown)}
    if text is None or "\x00" in text:
        return found | {"base64": base64.b64encode(shown).decode()}
    return found | {"text": text}
