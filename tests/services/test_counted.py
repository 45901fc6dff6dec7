"""What the broker itself delivers is in the figures of its topic, as a client's send is."""

from collections.abc import AsyncIterator

import pytest
from services.wire_client import WireClient
from waiting import until

from aerobee.client.testing import EmbeddedBroker
from aerobee.protocol.files.record import TRANSACTION_PREPARED
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
async def client(broker: EmbeddedBroker) -> AsyncIterator[WireClient]:
    async with WireClient.connected(broker.app.broker_port) as client:
        yield client


async def counted(client: WireClient, name: str, key: str) -> int:
    """As mqadmin statsAll asks: what came in the last day."""
    fields = {"statsName": name, "statsKey": key}
    answer = await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, fields)
    if answer.code != ResponseCode.SUCCESS:
        return 0
    return int(fastjson.loads(answer.body)["statsDay"]["sum"])


async def test_messages_of_delay_levels_and_timers_count_when_they_are_delivered(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    await client.send("T", b"a", DELAY="1")
    now_ms = broker.app.clock.now_ms()
    await client.send("T", b"b", TIMER_DELIVER_MS=str(now_ms + 60_000))
    assert await counted(client, "TOPIC_PUT_NUMS", "T") == 0
    await broker.advance(seconds=70)
    await until(lambda: broker.app.broker.stats.counter("put", "T").nums == 2)
    assert await counted(client, "TOPIC_PUT_NUMS", "T") == 2


async def test_a_transaction_counts_when_it_is_committed(client: WireClient) -> None:
    sent = await client.send(
        "T", b"x", sys_flag=TRANSACTION_PREPARED, TRAN_MSG="true", PGROUP="p", UNIQ_KEY="u"
    )
    assert await counted(client, "TOPIC_PUT_NUMS", "T") == 0
    end = {
        "producerGroup": "p",
        "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": int(sent.ext["msgId"][16:], 16),
        "commitOrRollback": 8,
    }
    assert (await client.ask(RequestCode.END_TRANSACTION, end)).code == ResponseCode.SUCCESS
    assert await counted(client, "TOPIC_PUT_NUMS", "T") == 1


async def test_messages_sent_back_are_counted_for_their_topic_and_group(
    client: WireClient,
) -> None:
    sent = await client.send("T", b"x")
    back = {"group": "g", "offset": int(sent.ext["msgId"][16:], 16), "delayLevel": 0}
    answer = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    assert answer.code == ResponseCode.SUCCESS
    assert await counted(client, "SNDBCK_PUT_NUMS", "T@g") == 1
