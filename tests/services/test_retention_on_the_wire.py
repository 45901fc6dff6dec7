"""Retention in a whole broker: acknowledged over sockets, kept over file removals, delivered."""

import asyncio
from typing import Any

from services.wire_client import WireClient

from aerobee.client.testing import EmbeddedBroker
from aerobee.protocol.files.record import TRANSACTION_PREPARED
from aerobee.protocol.wire.codes import RequestCode, ResponseCode

FILE_SIZE = 1 << 20
COMMIT = 8
EVERY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))


async def fill(client: WireClient, broker: EmbeddedBroker) -> None:
    """Into the next file of the log."""
    store = broker.app.broker.store
    end = (store.max_physical_offset // FILE_SIZE + 1) * FILE_SIZE
    while store.max_physical_offset <= end:
        await client.send("filler", bytes(64 << 10))


async def until_removed(broker: EmbeddedBroker, end: int) -> None:
    """Flushes and checkpoints are made by threads, in real time."""
    store = broker.app.broker.store
    async with asyncio.timeout(60):
        while store.min_physical_offset < end:
            await broker.advance(seconds=1)
            await asyncio.sleep(0.02)


async def test_what_was_acknowledged_outlives_retention() -> None:
    settings: dict[str, Any] = {
        "fileReservedTime": 24,
        "deleteWhen": EVERY_HOUR,
        "mappedFileSizeCommitLog": FILE_SIZE,
        "messageDelayLevel": "1s 36h",
    }
    async with (
        EmbeddedBroker(**settings) as broker,
        WireClient.connected(broker.app.broker_port) as client,
    ):
        due_ms = broker.clock.now_ms() + 30 * 3_600_000
        await client.send("T", b"timer", TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY="t1", KEYS="k1")
        recalled = await client.send("T", b"no", TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY="t2")
        await client.send("T", b"level", DELAY="2", UNIQ_KEY="d1", KEYS="k2")
        answer = await client.send(
            "T", b"half", sys_flag=TRANSACTION_PREPARED, TRAN_MSG="true", PGROUP="p", UNIQ_KEY="h1"
        )
        await fill(client, broker)
        await broker.advance(hours=24, minutes=2)
        await until_removed(broker, FILE_SIZE)
        assert await client.pull("T") == []
        ended = await client.ask(
            RequestCode.END_TRANSACTION,
            {
                "producerGroup": "p",
                "tranStateTableOffset": answer.ext["queueOffset"],
                "commitLogOffset": int(answer.ext["msgId"][16:], 16),
                "commitOrRollback": COMMIT,
                "msgId": "h1",
                "transactionId": "h1",
            },
        )
        assert ended.code == ResponseCode.SUCCESS, ended.remark
        handle = {"topic": "T", "recallHandle": recalled.ext["recallHandle"]}
        assert (await client.ask(RequestCode.RECALL_MESSAGE, handle)).code == ResponseCode.SUCCESS
        for hours, bodies in ((0, [b"half"]), (7, [b"half", b"timer"]), (6, None)):
            await broker.advance(hours=hours)
            await asyncio.sleep(0.1)
            await broker.advance(seconds=2)
            found = await client.pull("T")
            expected = bodies or [b"half", b"timer", b"level"]
            assert [bytes(each.body) for each in found] == expected
        keys = [each.property("KEYS") for each in found]
        assert keys == [None, "k1", "k2"]
