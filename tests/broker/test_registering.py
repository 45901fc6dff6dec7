"""Our broker and the name servers that it registers with."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import Client, running_broker
from peers.name_server import Ask
from peers.tools import free_port
from structlog.testing import capture_logs
from waiting import until

from aerobee.broker.base.clock import VirtualClock
from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.net.addresses import Addresses
from aerobee.broker.services.registration import Registrar
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.services.topics.table import Topics
from aerobee.broker.settings import load_settings
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame


@contextlib.asynccontextmanager
async def registering(
    port: int, clock: VirtualClock, folder: Path
) -> AsyncIterator[asyncio.Task[None]]:
    """A broker's registration with the name server at this port, in progress."""
    mine = load_settings(None, {"namesrvAddr": f"127.0.0.1:{port}"}, {})
    topics = Topics(str(folder / "topics.json"), mine, clock)
    topics.load()
    registrar = Registrar(mine, clock, topics, Addresses(mine, clock))
    running = asyncio.create_task(registrar.run())
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await registrar.stop()


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
    async with registering(port, clock, tmp_path):
        await until(lambda: bool(first.name_service.routes.topics()))
        await first.stop()
        second = AppNameServer(settings, clock=clock)
        await second.start()
        await until(lambda: bool(second.name_service.routes.topics()))
    await second.stop()


async def test_a_name_server_that_starts_after_the_broker_need_not_wait_long(
    tmp_path: Path,
) -> None:
    port = free_port()
    settings = load_settings(None, {"namesrvListenPort": port, "storePathRootDir": tmp_path}, {})
    clock = VirtualClock()
    with capture_logs() as logs:
        async with registering(port, clock, tmp_path):
            await until(lambda: any(log["event"] == "not registered" for log in logs))
            late = AppNameServer(settings, clock=clock)
            await late.start()
            await clock.advance(6)
            await until(lambda: bool(late.name_service.routes.topics()))
    await late.stop()


async def test_an_answer_that_makes_no_sense_does_not_end_the_registration(tmp_path: Path) -> None:
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        decoder = FrameDecoder(1 << 20)
        while data := await reader.read(1 << 16):
            for frame in decoder.feed(data):
                asked += 1
                odd = decode_command(*frame).answer(
                    ResponseCode.SUCCESS, {"masterEpoch": "the third"}
                )
                writer.write(encode_frame(odd))
        writer.close()

    clock = VirtualClock()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as odd_server:
        port = odd_server.sockets[0].getsockname()[1]
        with capture_logs() as logs:
            async with registering(port, clock, tmp_path) as running:
                await until(lambda: any("the third" in log.get("reason", "") for log in logs))
                before = asked
                await clock.advance(60)
                await until(lambda: asked > before)
                assert not running.done()


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
    await asyncio.sleep(0.5)  # nothing more may change
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
        for _ in range(3):  # once its backlog is full, connects hang
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
