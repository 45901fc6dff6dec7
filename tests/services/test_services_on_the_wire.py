"""The message services of a whole broker, over sockets, with time that a test moves."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from services.wire_client import WireClient

from aerobee.broker.handlers.recall import LIST_TIMERS
from aerobee.broker.net import questions
from aerobee.broker.store.files.disk import DiskFile
from aerobee.broker.store.queues.first_files import FirstFiles
from aerobee.client.testing import EmbeddedBroker
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import TRANSACTION_PREPARED, decode_record
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import encode_frame

COMMIT, ROLLBACK = 8, 12


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(transactionCheckInterval=10_000) as broker:
        yield broker


@pytest.fixture
async def client(broker: EmbeddedBroker) -> AsyncIterator[WireClient]:
    async with WireClient.connected(broker.app.broker_port) as client:
        yield client


async def half(client: WireClient, body: bytes = b"x", **more: str) -> dict[str, Any]:
    """A half message; what an END_TRANSACTION needs to say of it."""
    answer = await client.send(
        "T", body, sys_flag=TRANSACTION_PREPARED, TRAN_MSG="true", PGROUP="p", UNIQ_KEY="u1", **more
    )
    return {
        "producerGroup": "p",
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": int(answer.ext["msgId"][16:], 16),
        "msgId": "u1",
    }


def end_of_check(check: Command, decision: int) -> dict[str, Any]:
    names = ("tranStateTableOffset", "commitLogOffset", "msgId")
    fields = {name: check.ext[name] for name in names}
    return fields | {
        "producerGroup": "p",
        "commitOrRollback": decision,
        "fromTransactionCheck": "true",
    }


async def wait_for_check(client: WireClient, broker: EmbeddedBroker) -> Command:
    await broker.advance(seconds=20)
    check = await asyncio.wait_for(client.asked.get(), 5)
    assert check.code == RequestCode.CHECK_TRANSACTION_STATE and check.is_oneway
    return check


async def test_a_check_asks_a_producer_and_its_answer_ends_the_transaction(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    await client.heartbeat("p")
    await half(client, b"body", KEYS="k")
    check = await wait_for_check(client, broker)
    message = decode_record(check.body)
    assert (message.topic, bytes(message.body), message.property("KEYS")) == ("T", b"body", "k")
    assert check.ext["transactionId"] == check.ext["msgId"] == "u1"
    answer = await client.ask(RequestCode.END_TRANSACTION, end_of_check(check, COMMIT))
    assert answer.code == ResponseCode.SUCCESS
    assert [bytes(each.body) for each in await client.pull("T")] == [b"body"]
    while not client.asked.empty():
        client.asked.get_nowait()  # the next round asked before the answer arrived
    await broker.advance(seconds=60)
    await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
    assert client.asked.empty(), "a transaction that has ended was checked"


async def test_an_end_that_there_is_not_is_refused_and_the_transaction_stays_open(
    client: WireClient,
) -> None:
    fields = await half(client)
    answer = await client.ask(RequestCode.END_TRANSACTION, fields | {"commitOrRollback": 4})
    assert answer.code == ResponseCode.INVALID_PARAMETER and "4" in str(answer.remark)
    await client.ask(RequestCode.END_TRANSACTION, fields | {"commitOrRollback": COMMIT})
    assert len(await client.pull("T")) == 1


async def test_a_commit_that_crosses_a_check_is_delivered_once(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    await client.heartbeat("p")
    fields = await half(client)
    check = await wait_for_check(client, broker)
    client.tell(RequestCode.END_TRANSACTION, fields | {"commitOrRollback": COMMIT})
    answer = await client.ask(RequestCode.END_TRANSACTION, end_of_check(check, COMMIT))
    assert answer.code == ResponseCode.SYSTEM_ERROR and "not open any more" in str(answer.remark)
    assert len(await client.pull("T")) == 1


async def test_the_decision_stands_whatever_the_producer_says_later(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    await client.heartbeat("p")
    fields = await half(client)
    check = await wait_for_check(client, broker)
    await client.ask(RequestCode.END_TRANSACTION, fields | {"commitOrRollback": ROLLBACK})
    await client.ask(RequestCode.END_TRANSACTION, end_of_check(check, COMMIT))
    assert await client.pull("T") == []


async def test_fifteen_checks_without_an_answer_give_a_transaction_up_and_it_can_be_resumed(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    await client.heartbeat("p")
    await half(client)
    await broker.advance(seconds=10 * 20)
    await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
    checks = [client.asked.get_nowait() for _ in range(client.asked.qsize())]
    assert len(checks) == 15
    (given_up,) = await client.pull("TRANS_CHECK_MAX_TIME_TOPIC")
    assert given_up.property(props.TRANSACTION_CHECK_TIMES) == "15"
    answer = await client.ask(
        RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "T", "msgId": given_up.message_id}
    )
    assert answer.code == ResponseCode.SUCCESS
    check = await wait_for_check(client, broker)
    await client.ask(RequestCode.END_TRANSACTION, end_of_check(check, COMMIT))
    assert len(await client.pull("T")) == 1


async def test_no_check_is_counted_while_no_producer_is_there(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    await half(client)
    await broker.advance(seconds=3600)
    assert await client.pull("TRANS_CHECK_MAX_TIME_TOPIC") == []
    await client.heartbeat("p")
    check = await wait_for_check(client, broker)
    await client.ask(RequestCode.END_TRANSACTION, end_of_check(check, COMMIT))
    assert len(await client.pull("T")) == 1


async def test_an_immunity_time_puts_the_first_check_off(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    await client.heartbeat("p")
    now_ms = broker.clock.now_ms()
    await client.ask(
        RequestCode.SEND_MESSAGE,
        {
            "producerGroup": "p",
            "topic": "T",
            "queueId": 0,
            "bornTimestamp": now_ms,
            "properties": props.encode(
                {"TRAN_MSG": "true", "PGROUP": "p", "CHECK_IMMUNITY_TIME_IN_SECONDS": "300"}
            ),
        },
        b"x",
    )
    await broker.advance(seconds=250)
    await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
    assert client.asked.empty()
    await broker.advance(seconds=80)
    await asyncio.wait_for(client.asked.get(), 5)


async def test_a_thousand_timers_over_an_hour_come_once_each_at_their_time() -> None:
    chance = random.Random(11)
    async with EmbeddedBroker() as broker, WireClient.connected(broker.app.broker_port) as client:
        start_ms = broker.clock.now_ms()
        times = {f"{number}": start_ms + chance.randint(1000, 3_600_000) for number in range(1000)}
        for body, at_ms in times.items():
            await client.send("T", body.encode(), TIMER_DELIVER_MS=str(at_ms), UNIQ_KEY=body)
        await broker.advance(hours=1, seconds=1)
        came = await client.pull("T")
        assert sorted(bytes(each.body).decode() for each in came) == sorted(times)
        for each in came:
            late_ms = (
                int(each.property(props.TIMER_DEQUEUE_MS) or 0) - times[bytes(each.body).decode()]
            )
            assert 0 <= late_ms < 1000, (each.body, late_ms)  # the clock also goes by real time
        assert broker.app.broker.timers.pending == 0


async def test_a_recalled_timer_never_comes_and_the_list_does_not_show_it(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    handles = {}
    for number in range(5):
        answer = await client.send(
            "T", b"%d" % number, TIMER_DELAY_SEC="100", UNIQ_KEY=f"u{number}"
        )
        handles[number] = answer.ext["recallHandle"]
    answer = await client.ask(
        RequestCode.RECALL_MESSAGE,
        {"topic": "T", "recallHandle": handles[2], "producerGroup": "p"},
    )
    assert (answer.code, answer.ext["msgId"]) == (ResponseCode.SUCCESS, "u2")
    assert answer.ext["MSG_REGION"] == "DefaultRegion"  # without it the Java client traces nothing
    await broker.advance(seconds=1)
    shown, cursor, pages = [], "", 0
    while pages == 0 or cursor:
        page = await client.ask(LIST_TIMERS, {"maxNum": 2, "cursor": cursor, "topic": "T"})
        shown += [entry["msgId"] for entry in fastjson.loads(page.body)["timers"]]
        cursor, pages = page.ext.get("nextCursor", ""), pages + 1
    assert sorted(shown) == ["u0", "u1", "u3", "u4"] and pages >= 2
    await broker.advance(seconds=100)
    assert sorted(bytes(each.body) for each in await client.pull("T")) == [b"0", b"1", b"3", b"4"]


@pytest.mark.parametrize(
    ("handle", "code"),
    [
        ("nonsense", ResponseCode.ILLEGAL_OPERATION),
        ("djEgVSBiIDEgdQ==", ResponseCode.ILLEGAL_OPERATION),  # of another topic
    ],
)
async def test_a_handle_that_is_none_is_refused(client: WireClient, handle: str, code: int) -> None:
    await client.send("T")
    answer = await client.ask(
        RequestCode.RECALL_MESSAGE, {"topic": "T", "recallHandle": handle, "producerGroup": "p"}
    )
    assert answer.code == code and "recall failed" in str(answer.remark)
    assert answer.ext["MSG_REGION"] == "DefaultRegion"


async def test_a_timer_that_was_delivered_cannot_be_recalled(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    answer = await client.send("T", TIMER_DELAY_SEC="5", UNIQ_KEY="u")
    await broker.advance(seconds=6)
    refused = await client.ask(
        RequestCode.RECALL_MESSAGE, {"topic": "T", "recallHandle": answer.ext["recallHandle"]}
    )
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert len(await client.pull("T")) == 1


async def test_time_moves_on_only_when_threads_have_done_their_part(
    broker: EmbeddedBroker, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = FirstFiles._make

    def make_slowly(files: FirstFiles, folder: str) -> DiskFile:
        time.sleep(0.1)
        return make(files, folder)

    monkeypatch.setattr(FirstFiles, "_make", make_slowly)
    await client.send("T", TIMER_DELAY_SEC="5", UNIQ_KEY="u")
    await broker.advance(seconds=6)
    assert len(await client.pull("T")) == 1


async def test_queues_are_locked_for_one_client_until_it_is_silent_for_a_minute(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    await client.send("T")
    queues = [{"brokerName": "b", "queueId": number, "topic": "T"} for number in range(2)]

    async def lock(client_id: str, code: int = RequestCode.LOCK_BATCH_MQ) -> list[int]:
        body = {"clientId": client_id, "consumerGroup": "g", "mqSet": queues}
        answer = await client.ask(code, {}, fastjson.dumps(body))
        assert answer.code == ResponseCode.SUCCESS
        held = fastjson.loads(answer.body)["lockOKMQSet"] if answer.body else []
        return [queue["queueId"] for queue in held]

    assert await lock("one") == [0, 1] and await lock("two") == []
    await broker.advance(seconds=59)
    assert await lock("one") == [0, 1]
    await broker.advance(seconds=59)
    assert await lock("two") == []
    await broker.advance(seconds=2)
    assert await lock("two") == [0, 1] and await lock("one") == []
    await lock("one", RequestCode.UNLOCK_BATCH_MQ)
    assert await lock("one") == []
    await lock("two", RequestCode.UNLOCK_BATCH_MQ)
    assert await lock("one") == [0, 1]


async def test_a_queue_that_is_not_here_is_not_locked_and_not_kept(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    await client.send("T")
    names = [f"absent-{number}" for number in range(500)]
    queues = [{"brokerName": name, "queueId": 0, "topic": name} for name in names]
    queues += [{"brokerName": "b", "queueId": number, "topic": "T"} for number in (-1, 4, 99999)]
    queues.append({"brokerName": "b", "queueId": 0, "topic": "T"})
    body = {"clientId": "c", "consumerGroup": "g", "mqSet": queues}
    answer = await client.ask(RequestCode.LOCK_BATCH_MQ, {}, fastjson.dumps(body))
    assert fastjson.loads(answer.body)["lockOKMQSet"] == queues[-1:]
    long_id = fastjson.dumps(body | {"clientId": "x" * 2000})
    refused = await client.ask(RequestCode.LOCK_BATCH_MQ, {}, long_id)
    assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_an_sql_error_names_its_position(client: WireClient) -> None:
    async def check(expression: str, kind: str = "SQL92") -> Command:
        data = {"topic": "T", "subString": expression, "expressionType": kind}
        body = {"clientId": "c", "group": "g", "subscriptionData": data}
        return await client.ask(RequestCode.CHECK_CLIENT_CONFIG, {}, fastjson.dumps(body))

    assert (await check("a > 5")).code == ResponseCode.SUCCESS
    assert (await check("not sql at all", "TAG")).code == ResponseCode.SUCCESS
    wrong = await check("a > 5 AND b ==")
    assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert str(wrong.remark).endswith("a > 5 AND b ==\n             ^")
    assert (await check("x", "XPATH")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_pull_with_sql_gets_the_messages_that_match(client: WireClient) -> None:
    for number in range(10):
        await client.send("T", b"%d" % number, n=str(number), TAGS="odd" if number % 2 else "even")
    found = await client.pull("T", expressionType="SQL92", subscription="n >= 4 AND TAGS = 'odd'")
    assert [bytes(each.body) for each in found] == [b"5", b"7", b"9"]


async def test_a_reply_is_pushed_to_the_producer_that_waits(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    await client.heartbeat("p")
    await client.send("T")
    fields = {
        "producerGroup": "replier",
        "topic": "DefaultCluster_REPLY_TOPIC",
        "queueId": 0,
        "bornTimestamp": 5,
        "properties": props.encode(
            {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": client.client_id, "MSG_TYPE": "reply"}
        ),
    }
    async with WireClient.connected(broker.app.broker_port) as replier:
        replier.client_id = "127.0.0.1@replier"
        waiting = asyncio.create_task(
            replier.ask(RequestCode.SEND_REPLY_MESSAGE, fields, b"answer")
        )
        push = await asyncio.wait_for(client.asked.get(), 5)
        assert push.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT and not push.is_oneway
        assert bytes(push.body) == b"answer" and push.ext["bornTimestamp"] == "5"
        found = props.parse(push.ext["properties"])
        assert found["CORRELATION_ID"] == "c1" and "PUSH_REPLY_TIME" in found
        assert not waiting.done()
        client.answer(push)
        assert (await waiting).code == ResponseCode.SUCCESS
        fields["properties"] = props.encode({"REPLY_TO_CLIENT": "nobody"})
        missing = await replier.ask(RequestCode.SEND_REPLY_MESSAGE, fields, b"answer")
        assert missing.code == ResponseCode.SYSTEM_ERROR and "nobody" in str(missing.remark)


async def test_replies_to_a_producer_that_does_not_read_are_not_kept_in_memory(
    broker: EmbeddedBroker, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "UNSENT_MAX", 1 << 20)
    stalled, writer = await asyncio.open_connection("127.0.0.1", broker.app.broker_port)
    body = {"clientID": "stalled", "producerDataSet": [{"groupName": "p"}]}
    writer.write(encode_frame(Command(RequestCode.HEART_BEAT, {}, fastjson.dumps(body))))
    assert await stalled.read(4)
    assert isinstance(writer.transport, asyncio.Transport)
    writer.transport.pause_reading()
    fields = {
        "producerGroup": "replier",
        "topic": "DefaultCluster_REPLY_TOPIC",
        "queueId": 0,
        "bornTimestamp": 5,
        "properties": props.encode({"REPLY_TO_CLIENT": "stalled"}),
    }
    connections = broker.app._server.connections  # type: ignore[union-attr]
    for _ in range(100):  # 100 MB, at once: nobody waits for the answers
        client.tell(RequestCode.SEND_REPLY_MESSAGE, fields, bytes(1 << 20))
    refused = await client.ask(RequestCode.SEND_REPLY_MESSAGE, fields, bytes(1 << 20))
    assert refused.code == ResponseCode.SYSTEM_ERROR and "does not read" in str(refused.remark)
    assert max(each.outbox.unsent for each in connections) < 4 << 20
    writer.close()


async def test_a_message_sent_back_comes_again_after_ten_seconds(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    answer = await client.send("T")
    offset = int(answer.ext["msgId"][16:], 16)
    back = await client.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": offset, "group": "g", "delayLevel": 0}
    )
    assert back.code == ResponseCode.SUCCESS
    await broker.advance(seconds=9.5)
    assert await client.pull("%RETRY%g") == []
    await broker.advance(seconds=0.6)
    (again,) = await client.pull("%RETRY%g")
    assert again.reconsume_times == 1


async def test_pending_work_outlives_a_restart(client: WireClient, broker: EmbeddedBroker) -> None:
    await client.heartbeat("p")
    await client.send("T", b"level", DELAY="5")
    await client.send("T", b"timer", TIMER_DELAY_SEC="60", UNIQ_KEY="t")
    await half(client, b"half")
    await broker.restart()
    async with WireClient.connected(broker.app.broker_port) as again:
        await again.heartbeat("p")
        check = await wait_for_check(again, broker)
        await again.ask(RequestCode.END_TRANSACTION, end_of_check(check, COMMIT))
        await broker.advance(seconds=61)
        came = sorted(bytes(each.body) for each in await again.pull("T"))
        assert came == [b"half", b"level", b"timer"]


async def test_a_committed_transaction_that_its_consumer_sends_to_the_dead_letters_gets_there(
    client: WireClient,
) -> None:
    # Clients before 4.6.1 leave TRAN_MSG in what they send to the retry topic.
    fields = {"producerGroup": "CLIENT_INNER_PRODUCER", "topic": "%RETRY%g", "queueId": 0}
    told = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "u", "DELAY": "19"}
    answer = await client.ask(
        RequestCode.SEND_MESSAGE,
        fields | {"reconsumeTimes": 17, "sysFlag": 0, "properties": props.encode(told)},
        b"dead",
    )
    assert answer.code == ResponseCode.SUCCESS
    assert [bytes(each.body) for each in await client.pull("%DLQ%g")] == [b"dead"]
