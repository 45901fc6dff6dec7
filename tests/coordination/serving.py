"""The server that the tests of this folder ask, and the client that they ask it with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from peers.frame_client import FrameClient
from waiting import until

from aerobee.broker.base.clock import VirtualClock
from aerobee.broker.daemon.service_life import ServiceLife
from aerobee.broker.daemon.wiring import make_broker, make_front
from aerobee.broker.net.general_feed import GeneralFeed
from aerobee.broker.net.server import Server, bind
from aerobee.broker.settings import load_settings
from aerobee.broker.store.results import PutResult
from aerobee.protocol.files.ids import encode_host
from aerobee.protocol.files.record import Message
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import FRAME_SIZE_MAX, encode_frame

SMALL = {
    "mappedFileSizeCommitLog": 256 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 500,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "diskGuardEnable": "false",
}


class Serving:
    """Real services, store and sockets, without the rest of the daemon."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.root = folder / "store"
        self.clock = VirtualClock()
        fixed = {"storePathRootDir": self.root, "brokerName": "broker-a", "listenPort": 0}
        self.broker = make_broker(load_settings(None, SMALL | fixed | settings, {}), self.clock)
        self.port = 0

    async def __aenter__(self) -> "Serving":
        self._life = ServiceLife(self.broker)
        self._life.make_folder()
        self._life.load(lambda _done, _total: None)
        await self._life.start()
        dispatcher = make_front(self.broker).dispatcher
        self._server = Server(lambda peer: GeneralFeed(peer, dispatcher, FRAME_SIZE_MAX))
        sock = bind("127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        await self._server.listen(sock)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._server.stop(1.0)
        await self._life.stop()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator["Peer"]:
        async with Peer.connected(self.port) as peer:
            yield peer

    async def store(self, topic: str, queue_id: int, body: bytes, **fields: Any) -> PutResult:
        """Store one message and wait until readers see it."""
        host = encode_host("127.0.0.1", self.port)
        message = Message(topic, queue_id, body, store_host=host, **fields)
        message.born_timestamp = self.clock.now_ms()
        (result,) = self.broker.store.put([message])
        assert result.ok, result.reason
        await until(lambda: self.broker.store.dispatched_offset >= result.end_offset)
        return result


class Peer(FrameClient):
    """A client: asks, and keeps what the broker asks it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.asked: asyncio.Queue[Command] = asyncio.Queue()
        self.language, self.version = "JAVA", 409

    def keep(self, command: Command) -> None:
        self.asked.put_nowait(command)

    async def ask(self, code: int, ext: dict[str, Any] | None = None, body: Any = b"") -> Command:
        """Send a request and wait for its answer; `body` may be JSON."""
        return await asyncio.wait_for(self.start(code, ext, body), 20)

    def start(
        self, code: int, ext: dict[str, Any] | None = None, body: Any = b""
    ) -> "asyncio.Future[Command]":
        """Send a request; its answer comes by the future."""
        return self.begin(self._command(code, ext, body))

    def tell(self, code: int, ext: dict[str, Any] | None = None, body: Any = b"") -> None:
        """Send a oneway request."""
        command = self._command(code, ext, body)
        command.flag = 2
        self.writer.write(encode_frame(command))

    def answer(self, request: Command, code: int, body: Any = b"") -> None:
        """Answer what the broker asked."""
        data = body if isinstance(body, bytes) else fastjson.dumps(body)
        self.writer.write(encode_frame(request.answer(code, {}, data)))

    async def notices(self, count: int) -> list[Command]:
        """The next `count` requests of the broker."""
        return [await asyncio.wait_for(self.asked.get(), 10) for _ in range(count)]

    def _command(self, code: int, ext: dict[str, Any] | None, body: Any) -> Command:
        data = body if isinstance(body, bytes) else fastjson.dumps(body)
        texts = {key: str(value) for key, value in (ext or {}).items()}
        opaque = next(self._opaques)
        return Command(code, texts, data, opaque, language=self.language, version=self.version)


def heartbeat_body(
    client_id: str, group: str, *subscriptions: dict[str, Any], **consumer: Any
) -> dict[str, Any]:
    """A consumer's heartbeat as a Java client writes it."""
    return {
        "clientID": client_id,
        "producerDataSet": [],
        "consumerDataSet": [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": list(subscriptions),
            }
            | consumer
        ],
    }


def wants(topic: str, expression: str = "*", version: int = 1, **more: Any) -> dict[str, Any]:
    """One entry of a heartbeat's subscriptions."""
    return {"topic": topic, "subString": expression, "subVersion": version} | more
