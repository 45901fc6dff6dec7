"""The name service over real sockets: registrations of brokers, routes, lists, liveness."""

import asyncio
import contextlib
import json
import shutil
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop_turns import watched_turns
from peers.in_process import Client, running_broker
from peers.tools import free_port
from structlog.testing import capture_logs
from waiting import finish, until

from aerobee.broker.base.clock import VirtualClock
from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.handlers.name_service.admin import NAME_SERVICE_KEYS
from aerobee.broker.net.addresses import Addresses
from aerobee.broker.net.listening import StartError
from aerobee.broker.net.request_link import LinkError, RequestLink
from aerobee.broker.services.config_files import table_file
from aerobee.broker.services.name_service.registration_body import (
    compressed_slices,
    decode_slices,
    plain_slices,
)
from aerobee.broker.services.registration import Registrar
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.services.topics.table import Topics
from aerobee.broker.settings import load_settings
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 1700000000000}
TOPICS = {
    name: TopicConfig(name, 4, 3, 7 if name == "TBW102" else 6, topic_sys_flag=flag)
    for name, flag in (("TBW102", 0), ("orders", 0), ("unit", 1), ("unitSub", 3), ("sub", 2))
}
CALLS_MAX = 30_000  # of a turn; all of a registration of 20,000 topics: 700,000
Ask = Callable[..., Awaitable[Command]]


def encode_plain(version: dict[str, int], topics: dict[str, TopicConfig]) -> bytes:
    return finish(plain_slices(version, topics, -1))


def encode_compressed(version: dict[str, int], topics: dict[str, TopicConfig]) -> bytes:
    return finish(compressed_slices(version, topics, -1))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[AppNameServer]:
    settings = load_settings(None, {"namesrvListenPort": 0, "storePathRootDir": tmp_path}, {})
    app = AppNameServer(settings, clock=VirtualClock())
    await app.start()
    yield app
    await app.stop()


async def connect(server: AppNameServer) -> RequestLink:
    link = RequestLink(f"127.0.0.1:{server.namesrv_port}", lambda: None)
    await link.connect(5)
    return link


@pytest.fixture
async def link(server: AppNameServer) -> AsyncIterator[RequestLink]:
    link = await connect(server)
    yield link
    link.close()
    await asyncio.sleep(0)


@pytest.fixture
def ask(link: RequestLink) -> Ask:
    async def request(code: int, body: bytes = b"", version: int = 513, **ext: Any) -> Command:
        texts = {key: str(value) for key, value in ext.items()}
        return await link.request(Command(code, texts, body, version=version), 60)

    return request


def identity(name: str = "broker-a", broker_id: int = 0, port: int = 10911) -> dict[str, Any]:
    return {
        "brokerName": name,
        "brokerAddr": f"10.0.0.1:{port}",
        "clusterName": "DefaultCluster",
        "brokerId": broker_id,
        "haServerAddr": f"10.0.0.1:{port + 1}",
    }


async def register(ask: Ask, body: bytes | None = None, **ext: Any) -> Command:
    fields = identity() | ext
    return await ask(RequestCode.REGISTER_BROKER, body or encode_plain(VERSION, TOPICS), **fields)


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
                del topics["T2999"]  # the table may change meanwhile
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
    await asyncio.sleep(0.05)  # nothing comes after it
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


async def route_of(ask: Ask, topic: str) -> dict[str, Any]:
    answer = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    found: dict[str, Any] = json.loads(bytes(answer.body))
    return found


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
    assert dropped == ["10.0.0.1:20911"]  # the replica, and that once
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


async def test_write_permission_is_wiped_and_given_back(ask: Ask) -> None:
    await register(ask)
    wiped = await ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert wiped.ext == {"wipeTopicCount": str(len(TOPICS))}
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
    assert b'"perm":5' in bytes(route.body)
    added = await ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert added.ext == {"addTopicCount": str(len(TOPICS))}
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
    assert b'"perm":7' in bytes(route.body)


async def test_a_topic_is_deleted_and_registered_by_itself(ask: Ask) -> None:
    await register(ask)
    await ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders", clusterName="other")
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert route.code == 0
    await ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders")
    assert (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 17
    await ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, bytes(route.body), topic="orders")
    again = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert bytes(again.body) == bytes(route.body)


async def test_the_key_value_table_survives_a_restart(
    server: AppNameServer, ask: Ask, tmp_path: Path
) -> None:
    item = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
    assert (await ask(RequestCode.GET_KV_CONFIG, **item)).code == ResponseCode.QUERY_NOT_FOUND
    assert (await ask(RequestCode.PUT_KV_CONFIG, **item, value="broker-a:4")).code == 0
    assert (await ask(RequestCode.GET_KV_CONFIG, **item)).ext == {"value": "broker-a:4"}
    table = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG")
    assert bytes(table.body) == b'{"table":{"orders":"broker-a:4"}}'
    answer = await register(ask)
    assert bytes(answer.body) == b'{"table":{"orders":"broker-a:4"}}'
    server.settings.change({"orderMessageEnable": "true"})
    route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert json.loads(bytes(route.body))["orderTopicConf"] == "broker-a:4"

    again = AppNameServer(server.settings)
    again.name_service.kv.load()
    assert again.name_service.kv.get(**item) == "broker-a:4"
    assert (await ask(RequestCode.DELETE_KV_CONFIG, **item)).code == 0
    assert (await ask(RequestCode.GET_KV_CONFIG, **item)).code == ResponseCode.QUERY_NOT_FOUND


async def test_settings_are_shown_and_changed_within_their_bounds(
    server: AppNameServer, ask: Ask
) -> None:
    shown = bytes((await ask(RequestCode.GET_NAMESRV_CONFIG)).body).decode()
    values = dict(line.split("=", 1) for line in shown.splitlines())
    assert set(values) == NAME_SERVICE_KEYS  # as the real ones print; see test_odd_requests
    assert values["orderMessageEnable"] == "false"
    assert values["listenPort"] == str(server.settings.namesrv_listen_port)
    assert values["kvConfigPath"].endswith("kvConfig.json")
    changed = await ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"enableAllTopicList=false\n")
    assert changed.code == 0
    refused = await ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    fixed = await ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"kvConfigPath=/elsewhere")
    assert fixed.code == ResponseCode.NO_PERMISSION
    wrong = await ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"bindAddress=0.0.0.0")
    assert "cannot change while the broker runs" in str(wrong.remark)


async def test_a_request_that_lacks_a_field_is_told_which(ask: Ask) -> None:
    answer = await ask(RequestCode.PUT_KV_CONFIG, key="k", value="v")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "namespace" in str(answer.remark)
    assert (await ask(RequestCode.SEND_MESSAGE_V2)).code == 3


@pytest.mark.parametrize(
    ("code", "answered"),
    [
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.GET_KV_CONFIG, ResponseCode.QUERY_NOT_FOUND),
        (RequestCode.DELETE_KV_CONFIG, ResponseCode.SUCCESS),
        (RequestCode.GET_KVLIST_BY_NAMESPACE, ResponseCode.QUERY_NOT_FOUND),
        (RequestCode.WIPE_WRITE_PERM_OF_BROKER, ResponseCode.SUCCESS),
        (RequestCode.ADD_WRITE_PERM_OF_BROKER, ResponseCode.SUCCESS),
        (RequestCode.GET_TOPICS_BY_CLUSTER, ResponseCode.SUCCESS),
        (RequestCode.DELETE_TOPIC_IN_NAMESRV, ResponseCode.SUCCESS),
        (RequestCode.GET_BROKER_MEMBER_GROUP, ResponseCode.SUCCESS),
    ],
)
async def test_what_names_nothing_finds_or_changes_nothing_as_at_rocketmq(
    ask: Ask, code: int, answered: int
) -> None:
    assert (await ask(code)).code == answered


async def test_a_key_without_a_value_is_not_there(ask: Ask) -> None:
    item = {"namespace": "N", "key": "k"}
    assert (await ask(RequestCode.PUT_KV_CONFIG, **item, value="v")).code == 0
    assert (await ask(RequestCode.PUT_KV_CONFIG, **item)).code == 0  # no value: none is there
    assert (await ask(RequestCode.GET_KV_CONFIG, **item)).code == ResponseCode.QUERY_NOT_FOUND
    answer = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="N")
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize("compressed", [False, True])
async def test_our_broker_registers_at_once_on_a_change_and_says_goodbye(
    server: AppNameServer, ask: Ask, tmp_path: Path, compressed: bool
) -> None:
    settings = load_settings(
        None,
        {
            "namesrvAddr": f"127.0.0.1:{server.namesrv_port};127.0.0.1:1",
            "compressedRegister": compressed,
            "listenPort": 12345,
            "brokerName": "ours",
        },
        {},
    )
    topics = Topics(str(tmp_path / "topics.json"), settings, server.clock)
    topics.load()
    registrar = Registrar(settings, server.clock, topics, Addresses(settings, server.clock))
    running = asyncio.create_task(registrar.run())

    async def route(topic: str) -> Any:
        answer = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        return json.loads(bytes(answer.body)) if answer.code == 0 else None

    await until(lambda: route("TBW102"))
    found = await route("TBW102")
    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:12345"}
    assert found["queueDatas"][0]["perm"] == 7
    topics.put(TopicConfig("fresh", 2, 2))
    await until(lambda: route("fresh"))
    settings.change({"brokerPermission": "4"})
    topics.put(TopicConfig("drained", 2, 2))
    await until(lambda: route("drained"))
    assert (await route("fresh"))["queueDatas"][0]["perm"] == 4
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await registrar.stop()
    assert await route("TBW102") is None


async def test_a_name_server_hears_that_the_broker_may_not_be_written_to(
    server: AppNameServer, ask: Ask, tmp_path: Path
) -> None:
    async def perm() -> int:
        route = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
        return int(json.loads(bytes(route.body))["queueDatas"][0]["perm"]) if route.body else -1

    async def is_7() -> bool:
        return await perm() == 7

    async def is_5() -> bool:
        return await perm() == 5

    address = f"127.0.0.1:{server.namesrv_port}"
    async with running_broker(tmp_path / "broker", namesrv_addr=address) as app:
        operator = await Client.connect(app)
        await until(is_7)
        assert (await operator.request(25, {}, b"brokerPermission=4")).code == 0
        await until(is_5)
        assert (await operator.request(25, {}, b"brokerPermission=6")).code == 0
        await until(is_7)
        await operator.close()


async def test_our_broker_comes_back_to_a_name_server_that_was_restarted(tmp_path: Path) -> None:
    port = free_port()
    settings = load_settings(None, {"namesrvListenPort": port, "storePathRootDir": tmp_path}, {})
    clock = VirtualClock()
    first = AppNameServer(settings, clock=clock)
    await first.start()
    mine = load_settings(None, {"namesrvAddr": f"127.0.0.1:{port}"}, {})
    topics = Topics(str(tmp_path / "topics.json"), mine, clock)
    topics.load()
    registrar = Registrar(mine, clock, topics, Addresses(mine, clock))
    running = asyncio.create_task(registrar.run())
    await until(lambda: bool(first.name_service.routes.topics()))
    await first.stop()
    second = AppNameServer(settings, clock=clock)
    await second.start()
    await until(lambda: bool(second.name_service.routes.topics()))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await registrar.stop()
    await second.stop()


async def test_a_name_server_that_starts_after_the_broker_need_not_wait_long(
    tmp_path: Path,
) -> None:
    port = free_port()
    settings = load_settings(None, {"namesrvListenPort": port, "storePathRootDir": tmp_path}, {})
    clock = VirtualClock()
    mine = load_settings(None, {"namesrvAddr": f"127.0.0.1:{port}"}, {})
    topics = Topics(str(tmp_path / "topics.json"), mine, clock)
    topics.load()
    registrar = Registrar(mine, clock, topics, Addresses(mine, clock))
    with capture_logs() as logs:
        running = asyncio.create_task(registrar.run())
        await until(lambda: any(log["event"] == "not registered" for log in logs))
    late = AppNameServer(settings, clock=clock)
    await late.start()
    await clock.advance(6)
    await until(lambda: bool(late.name_service.routes.topics()))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await registrar.stop()
    await late.stop()


async def test_name_servers_that_disagree_about_ordered_topics_do_not_turn_them_to_and_fro(
    tmp_path: Path,
) -> None:
    servers = []
    for name in ("one", "two"):
        fields = {"namesrvListenPort": 0, "storePathRootDir": tmp_path / name}
        fields["returnOrderTopicConfigToBroker"] = True
        servers.append(AppNameServer(load_settings(None, fields, {}), clock=VirtualClock()))
        await servers[-1].start()
        servers[-1].name_service.kv.put("ORDER_TOPIC_CONFIG", name, "broker-a:4")
    addresses = ";".join(f"127.0.0.1:{server.namesrv_port}" for server in servers)
    mine = load_settings(None, {"namesrvAddr": addresses}, {})
    clock = VirtualClock()
    topics = Topics(str(tmp_path / "topics.json"), mine, clock)
    topics.load()
    for name in ("one", "two"):
        topics.put(TopicConfig(name))
    changes: list[str] = []
    topics.on_change.append(changes.append)
    registrar = Registrar(mine, clock, topics, Addresses(mine, clock))
    running = asyncio.create_task(registrar.run())
    await until(lambda: changes)
    await asyncio.sleep(0.5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await registrar.stop()
    for server in servers:
        await server.stop()
    one, two = topics.get("one"), topics.get("two")
    assert changes == ["one"]
    assert one is not None and one.order and two is not None and not two.order


async def test_a_name_server_whose_machine_is_gone_does_not_hold_up_the_others(
    server: AppNameServer, ask: Ask, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as sockets:
        gone = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # once its backlog is full, those who connect hear nothing
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(gone.getsockname())
        both = f"127.0.0.1:{gone.getsockname()[1]};127.0.0.1:{server.namesrv_port}"
        mine = load_settings(None, {"namesrvAddr": both}, {})
        topics = Topics(str(tmp_path / "topics.json"), mine, server.clock)
        topics.load()
        registrar = Registrar(mine, server.clock, topics, Addresses(mine, server.clock))
        running = asyncio.create_task(registrar.run())

        async def has_route(topic: str) -> bool:
            return (await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)).code == 0

        await until(lambda: has_route("TBW102"))
        topics.put(TopicConfig("fresh", 2, 2))
        await until(lambda: has_route("fresh"), 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await registrar.stop()


async def test_a_key_that_cannot_be_saved_is_no_success(
    server: AppNameServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "RETRY_S", 0.05)
    monkeypatch.setattr(table_file, "WHOLE_SHARE", 0.0)  # else a slow disk is waited for, 20-fold
    path = Path(server.name_service.kv.file.path)
    item = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
    assert (await ask(RequestCode.PUT_KV_CONFIG, **item, value="broker-a:4")).code == 0
    shutil.rmtree(path.parent)
    path.parent.write_text("no folder")
    for code, more in ((RequestCode.PUT_KV_CONFIG, {"value": "b"}), (102, {})):
        answer = await ask(code, **item, **more)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "cannot be saved" in (answer.remark or "")
    path.parent.unlink()
    assert (await ask(RequestCode.PUT_KV_CONFIG, **item, value="broker-a:8")).code == 0
    again = AppNameServer(server.settings)
    again.name_service.kv.load()
    assert again.name_service.kv.get(**item) == "broker-a:8"


async def test_a_table_that_cannot_be_read_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config" / "kvConfig.json").mkdir(parents=True)
    settings = load_settings(None, {"namesrvListenPort": 0, "storePathRootDir": tmp_path}, {})
    with pytest.raises(StartError, match=r"kvConfig\.json"):
        await AppNameServer(settings).start()
