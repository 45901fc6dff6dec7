"""Request and reply: a message whose consumer replies to the client that sent it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Final

from aerobee.client.errors import Misuse, RequestTimeout, refusal
from aerobee.client.message import Body, Message, Outgoing
from aerobee.client.producing.sender import STORED_CODES, Sender
from aerobee.client.transport.presence import Presence
from aerobee.client.transport.remoting import Remoting
from aerobee.client.transport.routes import Routes
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import StoredMessage
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

REPLY: Final = "reply"  # the message type of a reply
_THREAD: tuple[str, ...] = (props.CORRELATION_ID, props.REPLY_TO_CLIENT, props.TTL)
_NEEDED: Final = (props.CORRELATION_ID, props.REPLY_TO_CLIENT, props.CLUSTER)


class Requests:
    """The requests of one client that wait for their replies."""

    def __init__(self, sender: Sender, routes: Routes, presence: Presence) -> None:
        self._sender = sender
        self._routes = routes
        self._presence = presence
        self._known_at: set[str] = set()  # brokers that know this client's address for replies
        self._waiting: dict[str, asyncio.Future[Message]] = {}

    async def ask(self, message: Outgoing, timeout: float) -> Message:
        """Send the request and wait for its reply."""
        correlation = secrets.token_hex(16)
        message.properties += props.encode(
            {
                props.CORRELATION_ID: correlation,
                props.REPLY_TO_CLIENT: self._presence.client_id,
                props.TTL: str(round(timeout * 1000)),
            }
        )
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = waiting
        try:
            await self._register(message.topic)
            await self._sender.store(message, timeout)
            async with asyncio.timeout(timeout):
                return await waiting
        except TimeoutError:
            raise RequestTimeout(
                f"no reply to {message.message_id} of {message.topic!r} within {timeout:g} s",
                hint="does a consumer of the topic reply? It may still handle the request",
            ) from None
        finally:
            del self._waiting[correlation]

    async def _register(self, topic: str) -> None:
        """Register this client as a producer with every broker that may forward a reply."""
        await self._sender.prepare(topic)
        addresses = self._routes.broker_addresses
        if not self._known_at:
            await self._presence.join_producer(self._sender.group)
        elif not addresses <= self._known_at:
            await self._presence.beat()
        self._known_at |= addresses

    def take(self, pushed: Command) -> None:
        """Take a reply that the broker forwards; one that comes too late is dropped."""
        ext = pushed.ext
        properties = ext.get("properties", "")
        waiting = self._waiting.get(props.get(properties, props.CORRELATION_ID) or "")
        if waiting is None or waiting.done():
            return
        stored = StoredMessage(
            ext.get("topic", ""),
            int(ext.get("queueId", 0)),
            bytes(pushed.body),
            properties,
            sys_flag=int(ext.get("sysFlag", 0)),
            born_timestamp=int(ext.get("bornTimestamp", 0)),
            store_timestamp=int(ext.get("storeTimestamp", 0)),
        )
        waiting.set_result(
            Message(stored, ext.get("bname", ""), serializer=self._sender.serializer)
        )


async def reply(
    sender: Sender,
    remoting: Remoting,
    routes: Routes,
    request: Message,
    body: Body,
    properties: Mapping[str, str] | None,
) -> bool:
    """Reply through the broker that the request came from; False when its sender is gone."""
    asked = request.properties
    if any(name not in asked for name in _NEEDED):
        raise Misuse(f"{request.message_id} was not sent by `request`: no client waits for a reply")
    topic = f"{asked[props.CLUSTER]}_REPLY_TOPIC"
    message = sender.make(topic, body, properties=properties)
    thread = {name: asked[name] for name in _THREAD if name in asked}
    message.properties += props.encode({props.MSG_TYPE: REPLY, **thread})
    connection = await remoting.connection(routes.address(request.broker))
    command = sender.command(message, MessageQueue(topic, request.broker, 0), connection)
    command.code = RequestCode.SEND_REPLY_MESSAGE_V2
    answer = await connection.request(command, remoting.timeout)
    if answer.code == ResponseCode.SYSTEM_ERROR and "push reply message" in (answer.remark or ""):
        return False
    if answer.code not in STORED_CODES:
        raise refusal(answer.code, answer.remark, what=f"the reply to {request.message_id}")
    return True
