"""Topics that sends create, and settings that decide about them."""

import json
from dataclasses import replace
from pathlib import Path

from peers.in_process import Client, running_broker, send_ext

from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.wire.codes import ResponseCode


async def test_a_topic_is_created_by_its_first_send(app: AppBroker, json_client: Client) -> None:
    await json_client.request(310, send_ext("Two", d="2"))
    await json_client.request(310, send_ext("Many", d="100"))
    two, many = app.broker.topics.get("Two"), app.broker.topics.get("Many")
    assert two is not None and two.queue_nums == 2
    assert many is not None and (many.queue_nums, many.perm) == (8, 6)


async def test_no_topic_is_created_from_what_is_no_template(json_client: Client) -> None:
    for default_topic in ("Nothing", "OFFSET_MOVED_EVENT"):
        answer = await json_client.request(310, send_ext("New", c=default_topic))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "New" in (answer.remark or "")


async def test_without_auto_creation_an_unknown_topic_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, auto_create_topic_enable=False) as app:
        client = await Client.connect(app)
        answer = await client.request(310, send_ext("New"))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        await client.close()


async def test_auto_creation_is_turned_on_and_off_while_the_broker_runs(tmp_path: Path) -> None:
    async with running_broker(tmp_path, auto_create_topic_enable=False) as app:
        client = await Client.connect(app)

        async def template_perm() -> int | None:
            route = await client.request(105, {"topic": "TBW102"}, version=513)
            return (
                json.loads(bytes(route.body))["queueDatas"][0]["perm"] if route.code == 0 else None
            )

        for name in ("One", "Two"):
            assert (await client.request(25, {}, b"autoCreateTopicEnable=true")).code == 0
            assert await template_perm() == 7
            assert (await client.request(310, send_ext(name))).code == 0
            assert (await client.request(25, {}, b"autoCreateTopicEnable=false")).code == 0
            assert await template_perm() == 6
            answer = await client.request(310, send_ext(f"{name}More"))
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        await client.close()


async def test_auto_creation_has_a_cap(tmp_path: Path) -> None:
    async with running_broker(tmp_path, max_topics=20) as app:
        client = await Client.connect(app)
        codes = [(await client.request(310, send_ext(f"T{n}"))).code for n in range(30)]
        assert set(codes) == {0, ResponseCode.TOPIC_NOT_EXIST}
        assert len(app.broker.topics.all()) == 20
        await client.close()


async def test_a_topic_made_smaller_or_deleted_is_checked_again(
    app: AppBroker, json_client: Client
) -> None:
    assert (await json_client.request(310, send_ext("Orders", 3))).code == 0
    assert (await json_client.request(310, send_ext("Orders", 3))).code == 0
    topic = app.broker.topics.get("Orders")
    assert topic is not None
    app.broker.topics.put(replace(topic, read_queue_nums=2, write_queue_nums=2))
    assert (await json_client.request(310, send_ext("Orders", 3))).code == 29
    app.broker.topics.delete("Orders")
    answer = await json_client.request(310, send_ext("Orders", c="Nothing"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
