"""A broker with users, and a client that signs as one of them, on the fast or the general path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from peers.frame_client import FrameClient
from peers.in_process import running_broker

from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.wire.command import JSON, Command
from aerobee.protocol.wire.frame import encode_frame
from aerobee.protocol.wire.signing import Credentials

SECRET = "a-secret-of-{}"
USERS = """
accounts:
  - {accessKey: root, secretKey: a-secret-of-root, type: Super}
  - {accessKey: nothing, secretKey: a-secret-of-nothing}
  - {accessKey: pub, secretKey: a-secret-of-pub, policies: [allow Topic:t Pub]}
  - {accessKey: sub, secretKey: a-secret-of-sub, policies: [allow Topic:t Sub, allow Group:g Sub]}
  - {accessKey: topic-only, secretKey: a-secret-of-topic-only, policies: [allow Topic:t Sub]}
  - {accessKey: group-only, secretKey: a-secret-of-group-only, policies: [allow Group:g Sub]}
  - accessKey: away
    secretKey: a-secret-of-away
    status: disable
    policies: [allow Topic:t Pub]
  - {accessKey: maker, secretKey: a-secret-of-maker, policies: ["allow Topic:* Create"]}
  - accessKey: prefix
    secretKey: a-secret-of-prefix
    policies: ["allow Topic:t* Pub", deny Topic:t1 Pub]
  - accessKey: reader
    secretKey: a-secret-of-reader
    policies: ["allow Topic:t Sub,Get", "allow Topic:secret Sub,Get", "allow Group:g Sub"]
"""


def write_users(folder: Path, text: str = USERS, name: str = "access.yml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


@asynccontextmanager
async def guarded_broker(
    folder: Path, users: str = USERS, /, **settings: Any
) -> AsyncIterator[AppBroker]:
    path = write_users(folder, users)
    values: dict[str, Any] = {"acl_enable": True, "acl_file": str(path)} | settings
    async with running_broker(folder, **values) as app:
        yield app


def signed(command: Command, user: str, secret: str | None = None) -> Command:
    if user:
        Credentials(user, SECRET.format(user) if secret is None else secret).sign(command)
    return command


def loose(command: Command) -> bytes:
    """The same frame, with a JSON header that only the general path can read."""
    header = json.dumps(
        {
            "opaque": command.opaque,
            "code": command.code,
            "flag": command.flag,
            "language": "JAVA",
            "version": command.version,
            "extFields": command.ext,
        },
        indent=1,
    ).encode()
    body = bytes(command.body)
    size = 4 + len(header) + len(body)
    return size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


class Asker(FrameClient):
    """One connection, whose requests can be signed as any user."""

    def start(
        self,
        user: str,
        code: int,
        ext: dict[str, Any] | None = None,
        body: Any = b"",
        *,
        secret: str | None = None,
        general: bool = False,
        codec: int = JSON,
        tampered: bytes | None = None,
    ) -> asyncio.Future[Command]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        texts = {key: str(value) for key, value in (ext or {}).items()}
        opaque = next(self._opaques)
        command = signed(Command(code, texts, data, opaque, codec=codec), user, secret)
        if tampered is not None:
            command.body = tampered
        answer = self.expect(command)
        self.writer.write(loose(command) if general else encode_frame(command))
        return answer

    async def ask(self, user: str, code: int, *args: Any, **options: Any) -> Command:
        return await asyncio.wait_for(self.start(user, code, *args, **options), 10)

    def tell(self, user: str, code: int, ext: dict[str, Any]) -> None:
        texts = {key: str(value) for key, value in ext.items()}
        command = Command(code, texts, b"", next(self._opaques), flag=2)
        self.writer.write(encode_frame(signed(command, user)))


def send_fields(topic: str, group: str = "p", **more: Any) -> dict[str, Any]:
    """The ext of a plain send."""
    fields = dict(a=group, b=topic, c="TBW102", d=4, e=0, f=0, g=1, h=0, i="", j=0, k="false")
    return fields | {"m": "false"} | more


def pull_fields(topic: str, group: str, **more: Any) -> dict[str, Any]:
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    } | more


async def make_topics(app: AppBroker, *names: str) -> None:
    async with Asker.connected(app.broker_port) as asker:
        for name in names:
            fields = {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
            answer = await asker.ask("root", 17, fields)
            assert answer.code == 0, answer.remark
            answer = await asker.ask("root", 310, send_fields(name), b"first")
            assert answer.code == 0, answer.remark
