"""The name service over real sockets: registrations of brokers, routes, lists, liveness."""

import asyncio
import contextlib
import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from loop_turns import watched_turns
from peers.name_server import (
    CALLS_MAX,
    TOPICS,
    VERSION,
    Ask,
    connect,
    encode_compressed,
    encode_plain,
    identity,
    register,
    route_of,
)
from structlog.testing import capture_logs
from waiting import finish, until

from aerobee.broker.base.clock import VirtualClock
from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.net.request_link import LinkError, RequestLink
from aerobee.broker.services.name_service.registration_body import (
    compressed_slices,
    decode_slices,
    plain_slices,
)
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command


async def test_a_topic_that_nobody_has_is_17_without_a_body(ask: Ask) -> None:
    answer = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="nothing")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert not answer.body


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_registered_broker_has_a_route_in_each_form(ask: Ask, compressed: bool) -> None:
    body = (encode_compressed if compressed else encode_plain)(VERSION, TOPICS)
    answer = await register(
        ask, body, compressed=compressed, bodyCrc32=zlib.crc32(body) & 0x7FFFFFFF
    )
    assert answer.code == 0, answer.remark
    old = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders", version=317)
    assert bytes(old.body) == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
        b'"writeQueueNums":3}]}'
    )
    new = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders", version=401)
    asked = await ask(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        topic="orders",
        acceptStandardJsonOnly="true",
        version=317,
    )
    assert bytes(new.body) == bytes(asked.body) == bytes(old.body).replace(b"{0:", b'{"0":')
    assert json.loads(bytes(new.body))["queueDatas"][0]["perm"] == 6


async def test_a_damaged_registration_is_refused(ask: Ask) -> None:
    assert (await register(ask, bodyCrc32=12345)).code == ResponseCode.SYSTEM_ERROR
    for body, compressed in ((b"{", False), (b"[1]", False), (b"nonsense", True)):
        answer = await register(ask, body, compressed=compressed)
        assert answer.code == ResponseCode.SYSTEM_ERROR, body
    bomb = zlib.compress(bytes(40 << 20))
    assert "larger than" in str((await register(ask, bomb, compressed=True)).remark)
    cut = zlib.compress(zlib.decompress(encode_compressed(VERSION, TOPICS))[:60])
    assert "cut short" in str((await register(ask, cut, compressed=True)).remark)
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 17


@pytest.mark.parametrize("make", [plain_slices, compressed_slices])
def test_a_registration_of_many_topics_is_made_in_slices(make: Any) -> None:
    topics = {f"T{number}": TopicConfig(f"T{number}", 4, 4) for number in range(3000)}
    slices, sizes = make(VERSION, topics, -1), 0
    with contextlib.suppress(StopIteration):
        while True:
            next(slices)
            sizes += 1
            if sizes == 5:
                del topics["T2999"]  # the table may change between slices
    assert sizes >= 3000 // 64
    body = finish(make(VERSION, topics, -1))
    version, found, _ = finish(decode_slices(body, compressed=make is compressed_slices))
    assert (version, found) == (VERSION, topics)


@pytest.mark.parametrize("make", [plain_slices, compressed_slices])
async def test_a_registration_of_many_topics_does_not_keep_the_loop(ask: Ask, make: Any) -> None:
    topics = {f"T{number}": TopicConfig(f"T{number}", 4, 4) for number in range(20_000)}
    body = finish(make(VERSION, topics, -1))
    with watched_turns() as turns:
        answer = await register(ask, body, compressed=make is compressed_slices)
    assert answer.code == ResponseCode.SUCCESS
    assert turns.longest < CALLS_MAX
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T19999")).code == 0


@pytest.mark.parametrize("how", ["goodbye", "closed"])
async def test_a_broker_that_goes_while_its_topics_are_read_leaves_none(
    server: AppNameServer, link: RequestLink, ask: Ask, how: str
) -> None:
    topics = {f"T{number}": TopicConfig(f"T{number}", 4, 4) for number in range(20_000)}
    registering = asyncio.create_task(register(ask, encode_plain(VERSION, topics)))
    known = server.name_service.routes.queues
    while not known("T0"):  # noqa: ASYNC110  # at the very turn in which it is placed
        await asyncio.sleep(0)
    assert not known("T19999"), "all were placed at once"
    if how == "goodbye":
        await ask(RequestCode.UNREGISTER_BROKER, **identity())
        assert (await registering).code == ResponseCode.SUCCESS
    else:
        link.close()
        with pytest.raises(LinkError):
            await registering
    await until(lambda: not server.name_service.routes.topics())
    await asyncio.sleep(0.05)  # nothing is registered afterwards
    assert not known("T0") and not known("T19999")


def test_a_registration_that_is_no_standard_json_is_read_too() -> None:
    odd = b"{'topicConfigSerializeWrapper':{dataVersion:{counter:1},topicConfigTable:{T:{perm:2}}}}"
    version, topics, filters = finish(decode_slices(odd, compressed=False))
    assert (version, topics["T"].perm, filters) == ({"counter": 1}, 2, [])
    for empty in (b'{"topicConfigSerializeWrapper":{}}', b""):
        assert finish(decode_slices(empty, compressed=False)) == ({}, {}, [])


async def test_a_first_registration_with_one_topic_is_refused(ask: Ask) -> None:
    one = encode_plain(VERSION, {"orders": TOPICS["orders"]})
    assert (await register(ask, one)).code == ResponseCode.SYSTEM_ERROR
    assert (await register(ask)).code == 0
    changed = encode_plain(VERSION | {"counter": 2}, {"new": TopicConfig("new", 1, 1)})
    assert (await register(ask, changed)).code == 0
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="new")).code == 0
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 0


async def test_topics_change_only_with_their_version(ask: Ask) -> None:
    await register(ask)
    fewer = {name: replace(topic, read_queue_nums=9) for name, topic in TOPICS.items()}
    await register(ask, encode_plain(VERSION, fewer))
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert b'"readQueueNums":4' in bytes(route.body)
    await register(ask, encode_plain(VERSION | {"counter": 2}, fewer))
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert b'"readQueueNums":9' in bytes(route.body)


async def test_a_replica_learns_its_master_and_is_in_the_route(ask: Ask) -> None:
    await register(ask)
    answer = await register(ask, **identity(broker_id=1, port=20911))
    assert answer.ext == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders", version=1)
    assert b'{0:"10.0.0.1:10911",1:"10.0.0.1:20911"}' in bytes(route.body)
    group = await ask(
        RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="DefaultCluster", brokerName="broker-a"
    )
    assert bytes(group.body) == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.1:20911"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster"}}'
    )
    await ask(RequestCode.UNREGISTER_BROKER, **identity())
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders", version=1)
    assert b'{1:"10.0.0.1:20911"}' in bytes(route.body), "the replica can still be read from"
    await ask(RequestCode.UNREGISTER_BROKER, **identity(broker_id=1, port=20911))
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 17


async def test_a_broker_goes_with_its_connection(server: AppNameServer, ask: Ask) -> None:
    other = await connect(server)
    ext = {key: str(value) for key, value in identity().items()}
    await other.request(Command(RequestCode.REGISTER_BROKER, ext, encode_plain(VERSION, TOPICS)), 5)
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 0
    other.close()

    async def gone() -> bool:
        return (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 17

    await until(gone)
    info = fastjson.loads((await ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert info == {"brokerAddrTable": {}, "clusterAddrTable": {}}


@pytest.mark.parametrize("sign", [RequestCode.QUERY_DATA_VERSION, RequestCode.BROKER_HEARTBEAT])
async def test_a_broker_that_came_back_by_another_connection_stays_when_its_old_one_ends(
    server: AppNameServer, ask: Ask, sign: RequestCode
) -> None:
    old, new = await connect(server), await connect(server)
    ext = {key: str(value) for key, value in identity().items()}
    registration = Command(RequestCode.REGISTER_BROKER, dict(ext), encode_plain(VERSION, TOPICS))
    await old.request(registration, 5)
    await new.request(Command(sign, dict(ext), fastjson.dumps(VERSION)), 5)
    assert server._server is not None
    connections = server._server.connections
    count = len(connections)
    old.close()
    await until(lambda: len(connections) < count)
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 0
    new.close()

    async def gone() -> bool:
        return (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 17

    await until(gone)


async def test_a_name_server_that_stopped_reading_is_connected_to_again() -> None:
    accepted, ended = 0, asyncio.Event()

    async def deaf(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await ended.wait()
        writer.close()

    listener = await asyncio.start_server(deaf, "127.0.0.1", 0)
    link = RequestLink(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}", lambda: None)
    await link.connect(5)
    large = Command(RequestCode.REGISTER_BROKER, {}, bytes(32 << 20))  # more than a socket holds
    with pytest.raises(LinkError, match="did not answer"):
        await link.request(large, 0.2)

    async def again() -> bool:
        await link.connect(5)
        return accepted == 2

    await until(again, 20)
    link.close()
    ended.set()
    listener.close()


async def test_a_broker_that_takes_another_name_leaves_nothing_of_its_old_one(ask: Ask) -> None:
    await register(ask)
    assert (await register(ask, brokerName="broker-b")).code == 0
    route = await route_of(ask, "orders")
    assert [broker["brokerName"] for broker in route["brokerDatas"]] == ["broker-b"]
    info = fastjson.loads((await ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert list(info["brokerAddrTable"]) == ["broker-b"]


async def test_a_goodbye_under_a_wrong_name_does_not_make_a_broker_immortal(
    server: AppNameServer, ask: Ask
) -> None:
    other = await connect(server)
    ext = {key: str(value) for key, value in identity().items()}
    await other.request(Command(RequestCode.REGISTER_BROKER, ext, encode_plain(VERSION, TOPICS)), 5)
    assert (await ask(RequestCode.UNREGISTER_BROKER, **identity("another"))).code == 0
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 0
    other.close()

    async def gone() -> bool:
        return (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 17

    await until(gone)


async def test_a_master_that_comes_again_elsewhere_takes_the_place_of_its_old_self(
    server: AppNameServer, ask: Ask
) -> None:
    clock = server.clock
    assert isinstance(clock, VirtualClock)
    await register(ask)
    moved = identity() | {"brokerAddr": "10.0.0.2:10911", "haServerAddr": "10.0.0.2:10912"}
    await register(ask, **moved)
    replica = await register(ask, **identity(broker_id=1, port=20911))
    assert replica.ext["masterAddr"] == "10.0.0.2:10911"
    with capture_logs() as logs:
        for _ in range(4):
            await clock.advance(60)
            beat = {"clusterName": "DefaultCluster", "brokerAddr": "10.0.0.2:10911"}
            await ask(RequestCode.BROKER_HEARTBEAT, **beat)
    dropped = [log["address"] for log in logs if log["event"] == "broker dropped"]
    assert dropped == ["10.0.0.1:20911"]  # the replica only, and once
    route = await route_of(ask, "orders")
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.2:10911"}


async def test_a_broker_that_moved_to_another_cluster_stays_when_its_old_self_falls_silent(
    server: AppNameServer, ask: Ask
) -> None:
    clock = server.clock
    assert isinstance(clock, VirtualClock)
    await register(ask)
    await register(ask, clusterName="Other")
    for _ in range(4):
        await clock.advance(60)
        await register(ask, clusterName="Other")
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert route.code == 0
    assert json.loads(bytes(route.body))["brokerDatas"][0]["cluster"] == "Other"


async def test_a_silent_broker_is_dropped_and_a_sign_of_life_keeps_it(
    server: AppNameServer, ask: Ask
) -> None:
    clock = server.clock
    assert isinstance(clock, VirtualClock)
    await register(ask)
    await clock.advance(100)
    version = await ask(RequestCode.QUERY_DATA_VERSION, fastjson.dumps(VERSION), **identity())
    assert version.ext == {"changed": "false"}
    assert fastjson.loads(version.body) == VERSION
    await clock.advance(100)
    beat = {"clusterName": "DefaultCluster", "brokerAddr": "10.0.0.1:10911"}
    await ask(RequestCode.BROKER_HEARTBEAT, **beat)
    await clock.advance(100)
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 0
    await clock.advance(30)
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 17


async def test_the_version_of_an_unknown_broker_has_changed(ask: Ask) -> None:
    answer = await ask(RequestCode.QUERY_DATA_VERSION, fastjson.dumps(VERSION), **identity())
    assert answer.ext == {"changed": "true"}
    await register(ask)
    newer = fastjson.dumps(VERSION | {"counter": 2})
    answer = await ask(RequestCode.QUERY_DATA_VERSION, newer, **identity())
    assert answer.ext == {"changed": "true"}
    assert (await ask(RequestCode.QUERY_DATA_VERSION, b"{{", **identity())).code == 29


async def test_topics_are_listed_by_kind_and_cluster(ask: Ask) -> None:
    await register(ask)

    async def topics(code: int, **ext: Any) -> Any:
        return fastjson.loads((await ask(code, **ext)).body)["topicList"]

    assert await topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == sorted(TOPICS)
    assert await topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="DefaultCluster") == sorted(
        TOPICS
    )
    assert await topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="other") == []
    assert await topics(RequestCode.GET_UNIT_TOPIC_LIST) == ["unit", "unitSub"]
    assert await topics(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["sub", "unitSub"]
    assert await topics(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["sub"]
    system = fastjson.loads((await ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body)
    assert system == {
        "brokerAddr": "10.0.0.1:10911",
        "topicList": ["DefaultCluster", "broker-a"],
    }
    info = await ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert bytes(info.body) == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}},'
        b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    )


async def test_write_permission_is_wiped_and_restored(ask: Ask) -> None:
    await register(ask)
    wiped = await ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert wiped.ext == {"wipeTopicCount": str(len(TOPICS))}
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
    assert b'"perm":5' in bytes(route.body)
    added = await ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert added.ext == {"addTopicCount": str(len(TOPICS))}
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
    assert b'"perm":7' in bytes(route.body)


async def test_a_topic_is_deleted_and_registered_on_its_own(ask: Ask) -> None:
    await register(ask)
    await ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders", clusterName="other")
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert route.code == 0
    await ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders")
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 17
    await ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, bytes(route.body), topic="orders")
    again = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert bytes(again.body) == bytes(route.body)
