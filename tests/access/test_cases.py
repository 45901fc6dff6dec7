"""What is allowed and what is denied, case by case, on the fast and the general path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
from peers.in_process import running_broker
from waiting import until

from access.guarded import (
    USERS,
    Asker,
    guarded_broker,
    make_topics,
    pull_fields,
    send_fields,
    write_users,
)
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.settings import Settings
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import encode_frame
from aerobee.protocol.wire.sink_codes import SINK_COMMIT, SINK_PREPARE

NO = 16


@dataclass
class Case:
    """One row: who asks for what, and the answer's code; None: anything but a denial."""

    number: int
    name: str
    user: str
    code: int
    expected: int | None
    ext: dict[str, Any] = field(default_factory=dict)
    body: Any = b""
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.number} {self.name} ({self.code})"


SEND = send_fields("t")
LONG_SEND = {"topic": "t", "queueId": 0, "producerGroup": "p", "sysFlag": 0, "bornTimestamp": 1}
QUEUE = {"topic": "t", "queueId": 0}
GROUP = {"consumerGroup": "g"}
BATCH = bytes.fromhex("00000017" + "00000000" * 3 + "00000001" + "61" + "0000")
FOREIGN = {"offset": "FOREIGN"}
HALF = {
    "producerGroup": "p",
    "tranStateTableOffset": 0,
    "commitLogOffset": "HALF",
    "commitOrRollback": 8,
}
RESET = {"topic": "t", "group": "g", "timestamp": -1, "isForce": "true"}


def heartbeat(*topics: str, group: str = "g", producer: str = "") -> dict[str, Any]:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [{"topic": each, "subString": "*"} for each in topics],
    }
    return {
        "clientID": "c",
        "producerDataSet": [{"groupName": producer}] if producer else [],
        "consumerDataSet": [consumer] if topics else [],
    }


def locks() -> dict[str, Any]:
    queue = {"topic": "t", "brokerName": "broker-a", "queueId": 0}
    return {"consumerGroup": "g", "clientId": "c", "mqSet": [queue]}


QUERY = {"topic": "t", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 2**60}
CASES = [
    Case(1, "unsigned", "", 310, NO, SEND, b"x"),
    Case(2, "unknown key", "who", 310, NO, SEND, b"x"),
    Case(3, "wrong secret", "pub", 310, NO, SEND, b"x", {"secret": "another-one"}),
    Case(4, "body changed", "pub", 310, NO, SEND, b"x", {"tampered": b"y"}),
    Case(5, "disabled user", "away", 310, NO, SEND, b"x"),
    Case(6, "Pub", "pub", 310, 0, SEND, b"x"),
    Case(6, "Pub", "pub", 10, 0, LONG_SEND, b"x"),
    Case(6, "Pub", "pub", 320, 0, SEND | {"m": "true"}, BATCH),
    Case(7, "Sub only", "sub", 310, NO, SEND, b"x"),
    Case(8, "batch without rights", "nothing", 320, NO, SEND | {"m": "true"}, BATCH),
    Case(9, "reply without rights", "nothing", 324, NO, LONG_SEND, b"x"),
    Case(9, "reply without rights", "nothing", 325, NO, SEND, b"x"),
    Case(10, "own retry topic", "sub", 310, 0, send_fields("%RETRY%g", "g"), b"x"),
    Case(11, "another's retry topic", "sub", 310, NO, send_fields("%RETRY%g2", "g"), b"x"),
    Case(12, "trace topic", "nothing", 310, 0, send_fields("RMQ_SYS_TRACE_TOPIC"), b"x"),
    Case(13, "Sub of topic and group", "sub", 11, 0, pull_fields("t", "g")),
    Case(14, "Sub of the topic only", "topic-only", 11, NO, pull_fields("t", "g")),
    Case(14, "Sub of the group only", "group-only", 11, NO, pull_fields("t", "g")),
    Case(15, "lite pull without rights", "nothing", 361, NO, pull_fields("t", "g")),
    Case(15, "lite pull", "sub", 361, 0, pull_fields("t", "g")),
    Case(16, "retry topic of another group", "sub", 11, NO, pull_fields("%RETRY%g2", "g")),
    Case(17, "heartbeat, one topic denied", "sub", 34, NO, {}, heartbeat("t", "secret")),
    Case(17, "heartbeat", "sub", 34, 0, {}, heartbeat("t", "%RETRY%g")),
    Case(18, "heartbeat of a producer", "nothing", 34, 0, {}, heartbeat(producer="p")),
    Case(19, "unregister", "nothing", 35, NO, {"clientID": "c", **GROUP}),
    Case(19, "list of consumers", "nothing", 38, NO, GROUP),
    Case(20, "offset without rights", "nothing", 14, NO, QUEUE | GROUP),
    Case(20, "offset", "sub", 14, None, QUEUE | GROUP),
    Case(22, "send back, group denied", "topic-only", 36, NO, FOREIGN | {"group": "g"}),
    Case(23, "send back of a foreign record", "sub", 36, NO, FOREIGN | {"group": "g"}),
    Case(23, "send back", "reader", 36, 0, FOREIGN | {"group": "g"}),
    Case(24, "end of a transaction, no topic", "nothing", 37, NO, HALF),
    Case(25, "end of a transaction, topic named", "nothing", 37, NO, HALF | {"topic": "t"}),
    Case(24, "end of another topic's transaction", "pub", 37, NO, HALF | {"topic": "t"}),
    Case(26, "query", "nothing", 12, NO, QUERY),
    Case(27, "unique key query", "sub", 12, None, QUERY | {"_UNIQUE_KEY_QUERY": "true"}),
    Case(28, "record by id", "nothing", 33, NO, FOREIGN),
    Case(28, "record by id, own topic named", "sub", 33, NO, FOREIGN | {"topic": "t"}),
    Case(28, "record by id", "reader", 33, 0, FOREIGN),
    *(Case(29, "range of a queue", "nothing", code, NO, QUEUE | {"timestamp": 0})
      for code in (29, 30, 31)),
    *(Case(29, "range of a queue", "sub", code, 0, QUEUE | {"timestamp": 0})
      for code in (29, 30, 31)),
    *(Case(30, "locks", "nothing", code, NO, {}, locks()) for code in (41, 42)),
    *(Case(30, "locks", "sub", code, 0, {}, locks()) for code in (41, 42)),
    Case(31, "create a topic", "nothing", 17, NO, QUEUE | {"readQueueNums": 1}),
    Case(31, "delete a group", "nothing", 207, NO, {"groupName": "g"}),
    Case(31, "delete a topic", "nothing", 215, NO, {"topic": "t"}),
    Case(32, "Create", "maker", 17, 0,
         {"topic": "made", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": "false",
          "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}),
    Case(33, "change the settings", "nothing", 25, NO, {}, b"fileReservedTime=0"),
    Case(33, "change a group", "nothing", 200, NO, {}, {"groupName": "g"}),
    *(Case(34, "read all", "nothing", code, NO) for code in (21, 26, 28, 43)),
    Case(35, "make oneself admin", "nothing", 50, NO, {"accessKey": "nothing", "admin": "true"}),
    Case(35, "white addresses", "nothing", 53, NO, {"globalWhiteAddrs": "*"}),
    *(Case(36, "users", "nothing", code, NO, {"username": "x"}) for code in (3001, 3005, 3006)),
    Case(37, "reset offsets", "nothing", 222, NO, RESET),
    Case(37, "clone offsets", "nothing", 314, NO, {"srcGroup": "g", "destGroup": "h"}),
    Case(38, "register a broker, unsigned", "", 103, NO, {"brokerName": "evil"}),
    Case(38, "name server's settings, unsigned", "", 318, NO),
    Case(38, "route, unsigned", "", 105, 0, {"topic": "t"}),
    Case(40, "a prefix is allowed", "prefix", 310, 0, send_fields("t"), b"x"),
    Case(40, "a name is denied", "prefix", 310, NO, send_fields("t1"), b"x"),
    Case(42, "topics of the broker's own", "sub", 11, NO,
         pull_fields("RMQ_SYS_TRANS_HALF_TOPIC", "g")),
    Case(43, "key anonymous is nobody's", "anonymous", 310, NO, SEND, b"x"),
]  # fmt: skip


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppBroker]:
    async with guarded_broker(tmp_path) as broker:
        yield broker


@pytest.mark.parametrize("general", [False, True], ids=["short way", "general path"])
async def test_each_case_is_allowed_or_denied_as_the_table_says(
    app: AppBroker, general: bool
) -> None:
    await make_topics(app, "t", "t1", "secret")
    wrong = []
    async with Asker.connected(app.broker_port) as asker:
        places = await _places(asker)
        for case in CASES:
            ext = {key: places.get(value, value) for key, value in case.ext.items()}
            options = case.options | {"general": general}
            answer = await asker.ask(case.user, case.code, ext, case.body, **options)
            right = answer.code != NO if case.expected is None else answer.code == case.expected
            if right and answer.code == NO:
                right = bool(answer.remark) and (
                    not case.user or case.user in (answer.remark or "")
                )
            if not right:
                wrong.append(f"{case}: {answer.code} {answer.remark}")
    assert not wrong, "\n".join(wrong)


class Asks(Protocol):
    async def ask(self, user: str, code: int, *args: Any, **options: Any) -> Any: ...


async def _places(asker: Asks) -> dict[Any, int]:
    """Offsets of a record, and of a half message, in a topic that only `reader` may read."""
    found = {}
    for name, more in (("FOREIGN", {}), ("HALF", {"i": "TRAN_MSG\x01true\x02PGROUP\x01p\x02"})):
        answer = await asker.ask("root", 310, send_fields("secret", **more), b"private")
        assert answer.code == 0, answer.remark
        found[name] = int(answer.ext["msgId"][16:], 16)
    return found


async def test_a_transaction_whose_offset_is_gone_is_ended_only_by_who_may_send_to_its_topic(
    app: AppBroker,
) -> None:
    await make_topics(app, "secret")
    transactions = app.broker.transactions

    def is_known() -> bool:
        if transactions.prepare():
            transactions.read_halves()
        return transactions.open_count == 1

    async with Asker.connected(app.broker_port) as asker:
        await _places(asker)
        await until(is_known)
        ended = HALF | {"commitLogOffset": -1}  # as if its file had been removed
        for user in ("nothing", "pub"):
            assert (await asker.ask(user, 37, ended)).code == NO
        assert transactions.open_count == 1
        assert (await asker.ask("root", 37, ended)).code == 0
        assert transactions.open_count == 0


async def test_a_transaction_in_the_store_pool_is_ended_only_by_who_may_send_to_its_topic(
    tmp_path: Path,
) -> None:
    """Its record can be read a moment after it was acknowledged."""
    pool = {"transient_store_pool_enable": True, "commit_interval_commit_log": 60_000}
    async with guarded_broker(tmp_path, **pool) as app:
        await make_topics(app, "secret")
        async with Asker.connected(app.broker_port) as asker:
            place = (await _places(asker))["HALF"]
            assert app.broker.store.committed_offset <= place
            ended = HALF | {"commitLogOffset": place}
            assert (await asker.ask("pub", 37, ended)).code == NO
            assert (await asker.ask("root", 37, ended)).code == 0


async def test_rows_of_another_topic_are_not_published_however_their_chunk_is_written(
    app: AppBroker,
) -> None:
    await make_topics(app, "secret")
    async with Asker.connected(app.broker_port) as asker:
        ext = {"query": "q", "batch": 0, "partition": 0, "attempt": 3, "chunk": 7}
        ext |= {"topic": "secret", "queueId": 0, "bornTimestamp": 1}
        prepared = await asker.ask("root", SINK_PREPARE, ext, BATCH)
        assert prepared.code == 0, prepared.remark
        place, size = prepared.ext["offset"], prepared.ext["size"]
        commit = {"query": "q", "batch": 0, "timeoutMs": 60_000}
        for chunk, code in (
            (f"[0,3,7,{place},{size}]", NO),
            (f"{{0:0,3:-1,7:0,{place}:0,{size}:0}}", 29),
        ):
            body = f'{{"chunks":[{chunk}]}}'.encode()
            assert (await asker.ask("nothing", SINK_COMMIT, commit, body)).code == code
        assert app.broker.batch_ledger.book.newest("q") == -1


async def test_a_commit_without_rows_does_not_take_a_batch_from_a_query(app: AppBroker) -> None:
    """Every batch of the query up to that one would count as committed, and be left out."""
    async with Asker.connected(app.broker_port) as asker:
        commit = {"query": "q", "batch": 1 << 62, "timeoutMs": 60_000}
        for user in ("nothing", "pub"):
            assert (await asker.ask(user, SINK_COMMIT, commit, {"chunks": []})).code == NO
        assert app.broker.batch_ledger.book.newest("q") == -1


async def test_the_progress_of_a_group_is_shown_in_topics_that_may_be_read_only(
    tmp_path: Path,
) -> None:
    rights = '["allow Topic:t Get", "allow Group:g Get"]'
    watcher = f"  - {{accessKey: watcher, secretKey: a-secret-of-watcher, policies: {rights}}}\n"
    async with guarded_broker(tmp_path, USERS + watcher) as app:
        await make_topics(app, "t", "secret")
        async with Asker.connected(app.broker_port) as asker:
            for named, code in (
                ({"topic": "t"}, 0),
                ({"topicList": "t;"}, 0),
                ({"topic": "secret"}, NO),
                ({"topicList": "t;secret"}, NO),
            ):
                assert (await asker.ask("watcher", 208, GROUP | named)).code == code, named


async def test_only_a_super_user_signs_in_to_copy_the_log(tmp_path: Path) -> None:
    """It has the messages of all topics; what registers brokers need not read them."""
    keeper = """  - accessKey: keeper
    secretKey: a-secret-of-keeper
    policies: ["allow Cluster:* Update,Get"]
"""
    signed_in: list[int] = []
    async with guarded_broker(tmp_path, USERS + keeper) as app:
        app.broker.replication.identify = lambda _endpoint, number: signed_in.append(number)
        async with Asker.connected(app.broker_port) as asker:
            slave = {"slaveId": 1, "slaveHost": "127.0.0.1", "slavePort": 1}
            assert (await asker.ask("keeper", 906)).code == 0
            assert (await asker.ask("keeper", 906, slave)).code == NO
            assert not signed_in
            assert (await asker.ask("root", 906, slave)).code == 0
            assert signed_in == [1]


async def test_a_consumer_that_is_asked_for_an_administrator_gets_no_signature(
    app: AppBroker,
) -> None:
    """Codes and the names of fields are not signed: by its client id it could choose what else the
    signature is good for."""
    await make_topics(app, "t")
    asked: asyncio.Queue[Command] = asyncio.Queue()

    class Consumer(Asker):
        def keep(self, command: Command) -> None:
            asked.put_nowait(command)

    async with (
        Asker.connected(app.broker_port) as asker,
        Consumer.connected(app.broker_port) as consumer,
    ):
        beat = {"clientID": "t", "consumerDataSet": [{"groupName": "g"}]}
        assert (await consumer.ask("sub", 34, {}, beat)).code == 0
        answer = asker.start("root", 307, {"clientId": "t", "consumerGroup": "g"})
        while (request := await asyncio.wait_for(asked.get(), 10)).code != 307:
            pass  # that its group has changed
        consumer.writer.write(encode_frame(request.answer(0)))
        assert (await answer).code == 0
        assert request.ext == {"clientId": "t", "consumerGroup": "g"}
        stolen = {name: request.ext.get(name, "") for name in ("AccessKey", "Signature")}
        again = Command(215, {"topic": "t", "zzz": "g"} | stolen, b"", 1 << 20)
        assert (await asyncio.wait_for(consumer.begin(again), 10)).code == NO
    assert app.broker.topics.get("t") is not None


async def test_21_a_oneway_request_that_is_denied_is_silent_and_changes_nothing(
    app: AppBroker,
) -> None:
    await make_topics(app, "t")
    async with Asker.connected(app.broker_port) as asker:
        asker.tell("nothing", 15, QUEUE | GROUP | {"commitOffset": 1})
        await asker.ask("", 105, {"topic": "t"})  # answered in order: the oneway is handled
    assert app.broker.offsets.query("g", "t", 0) < 0
    assert app.broker.guard.audit.denials["no right"] == 1


async def test_39_a_white_address_needs_no_signature(tmp_path: Path) -> None:
    users = USERS + "globalWhiteRemoteAddresses: [127.0.0.*]\n"
    async with guarded_broker(tmp_path, users) as app:
        await make_topics(app, "t")
        async with Asker.connected(app.broker_port) as asker:
            assert (await asker.ask("", 310, SEND, b"x")).code == 0
            assert (await asker.ask("", 26)).code == 0


async def test_a_disabled_user_is_denied_at_its_white_address_too(tmp_path: Path) -> None:
    white = "    secretKey: a-secret-of-away\n    whiteRemoteAddress: 127.0.0.*\n"
    users = USERS.replace("    secretKey: a-secret-of-away\n", white)
    async with guarded_broker(tmp_path, users) as app:
        await make_topics(app, "t")
        async with Asker.connected(app.broker_port) as asker:
            for general in (False, True):
                answer = await asker.ask("away", 310, SEND, b"x", general=general)
                assert (answer.code, "disabled" in str(answer.remark)) == (NO, True)
        enabled = users.replace("    status: disable\n", "")
        write_users(tmp_path, enabled)
        app.broker.guard.book.reload()
        async with Asker.connected(app.broker_port) as asker:
            answer = await asker.ask("away", 310, SEND, b"x", secret="another-one")
            assert answer.code == 0


async def test_41_a_right_that_is_taken_away_ends_a_pull_that_waits(
    app: AppBroker, tmp_path: Path
) -> None:
    await make_topics(app, "t")
    async with Asker.connected(app.broker_port) as asker:
        waits = {"queueOffset": 1, "sysFlag": 6, "suspendTimeoutMillis": 20000}
        for general in (False, True):
            pull = asker.start("sub", 11, pull_fields("t", "g", **waits), general=general)
            await asyncio.wait({pull}, timeout=0.2)
            assert not pull.done()
            write_users(tmp_path, USERS.replace("allow Topic:t Sub, allow Group:g Sub", ""))
            app.broker.guard.book.reload()
            assert (await asker.ask("root", 310, SEND, b"not for him")).code == 0
            answer = await asyncio.wait_for(pull, 10)
            assert (answer.code, bytes(answer.body)) == (NO, b"")
            write_users(tmp_path)
            app.broker.guard.book.reload()
            waits["queueOffset"] += 1


async def test_38_a_name_server_alone_has_the_same_rules(tmp_path: Path) -> None:
    settings = Settings(
        namesrv_listen_port=0,
        store_path_root_dir=str(tmp_path / "names"),
        acl_enable=True,
        acl_file=str(write_users(tmp_path)),
    )
    server = AppNameServer(settings)
    await server.start()
    try:
        async with Asker.connected(server.namesrv_port) as asker:
            codes = {}
            for user in ("", "nothing", "root"):
                for code in (103, 318, 105, 206):
                    answer = await asker.ask(user, code, {"topic": "t"})
                    codes[user, code] = answer.code
    finally:
        await server.stop()
    assert {key for key, code in codes.items() if code == NO} == {
        *(("", code) for code in (103, 318, 206)),
        *(("nothing", code) for code in (103, 318, 206)),
    }


async def test_without_access_control_no_credentials_are_needed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as app:
        await make_topics(app, "t")  # by a user that is not there
        async with Asker.connected(app.broker_port) as asker:
            assert (await asker.ask("", 310, SEND, b"x")).code == 0
