"""A client that speaks frames over a real socket, and keeps what the broker asks of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from peers.frame_client import FrameClient

from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import StoredMessage, decode_records
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import ONEWAY_FLAG, Command
from aerobee.protocol.wire.frame import encode_frame


class WireClient(FrameClient):
    """Requests by `ask`; the broker's own requests wait in `asked`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.client_id = "127.0.0.1@test"
        self.asked: asyncio.Queue[Command] = asyncio.Queue()

    def keep(self, command: Command) -> None:
        if command.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.asked.put_nowait(command)

    async def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Command:
        texts = {name: str(value) for name, value in (ext or {}).items()}
        command = Command(code, texts, body, next(self._opaques))
        return await asyncio.wait_for(self.begin(command), 10)

    def tell(self, code: int, ext: dict[str, Any], body: bytes = b"") -> None:
        """Oneway."""
        texts = {name: str(value) for name, value in ext.items()}
        self.writer.write(encode_frame(Command(code, texts, body, 0, ONEWAY_FLAG)))

    def answer(self, request: Command, code: int = ResponseCode.SUCCESS) -> None:
        self.writer.write(encode_frame(request.answer(code)))

    # --- what clients do

    async def heartbeat(
        self, *producers: str, consumer: str = "", subscriptions: list[dict[str, Any]] | None = None
    ) -> None:
        consumers = [
            {
                "groupName": consumer,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": subscriptions or [],
            }
        ]
        body = {
            "clientID": self.client_id,
            "producerDataSet": [{"groupName": group} for group in producers],
            "consumerDataSet": consumers if consumer else [],
        }
        answer = await self.ask(RequestCode.HEART_BEAT, {}, fastjson.dumps(body))
        assert answer.code == ResponseCode.SUCCESS, answer

    async def send(
        self, topic: str, body: bytes = b"x", *, sys_flag: int = 0, **properties: str
    ) -> Command:
        answer = await self.ask(
            RequestCode.SEND_MESSAGE,
            {
                "producerGroup": "p",
                "topic": topic,
                "queueId": 0,
                "sysFlag": sys_flag,
                "bornTimestamp": time.time_ns() // 1_000_000,
                "properties": props.encode(properties),
            },
            body,
        )
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer

    async def pull(self, topic: str, queue_offset: int = 0, **more: Any) -> list[StoredMessage]:
        answer = await self.ask(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": "TOOLS_CONSUMER",
                "topic": topic,
                "queueId": 0,
                "queueOffset": queue_offset,
                "maxMsgNums": 4096,
                "sysFlag": 4,
                "commitOffset": 0,
                "suspendTimeoutMillis": 0,
                "subscription": "*",
                "subVersion": 0,
                "maxMsgBytes": 8 << 20,
            }
            | more,
        )
        return decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []
