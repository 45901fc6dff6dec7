"""Values in the place of bytes."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import pytest
from waiting import until

from aerobee import (
    JSON,
    MSGPACK,
    ConsumerOptions,
    Message,
    Misuse,
    Serializer,
    Verdict,
    connect,
    json_of,
    msgpack_of,
)
from aerobee.testing import EmbeddedBroker


@dataclass
class Order:
    number: int
    items: list[str]


class Model:
    """As a model of Pydantic's looks from outside."""

    def __init__(self, number: int) -> None:
        self.number = number

    def model_dump(self, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"number": self.number}

    @classmethod
    def model_validate(cls, value: dict[str, int]) -> Self:
        return cls(value["number"])

    @classmethod
    def model_validate_json(cls, body: bytes) -> Self:
        return cls.model_validate(json.loads(body))


@pytest.mark.parametrize("serializer", [JSON, MSGPACK])
async def test_values_go_everywhere_that_bodies_go(
    aerobee_broker: EmbeddedBroker, serializer: Serializer
) -> None:
    async with connect(aerobee_broker.url, serializer=serializer) as mq:
        got = []

        async def handle(message: Message) -> None:
            got.append(message.value)
            if "ask" in message.value:
                await message.reply({"answer": message.value["ask"]})

        async def check(message: Message) -> Verdict:
            return Verdict.COMMIT if message.value == {"n": 4} else Verdict.ROLLBACK

        async with mq.consumer("orders", group="g") as inbox:
            running = asyncio.create_task(inbox.run(handle))
            await mq.send("orders", {"n": 1}, key="k")
            await mq.producer("orders").send_batch([{"n": 2}, {"n": 3}])
            async with mq.transactions("orders", group="t", check=check) as transactions:
                for number in (4, 5):
                    with pytest.raises(ZeroDivisionError):
                        async with transactions.begin({"n": number}):
                            raise ZeroDivisionError
            async with mq.producer("orders", linger=0.001) as buffered:
                await buffered.send({"n": 6})
            assert (await mq.request("orders", {"ask": "x"})).value == {"answer": "x"}
            await until(lambda: len(got) == 6)
            await inbox.close()
            await running
        assert sorted(row["n"] for row in got if "n" in row) == [1, 2, 3, 4, 6]
        assert [row.value async for row in mq.find("orders", key="k")] == [{"n": 1}]


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (json_of(Order), Order(1, ["tea"])),
        (msgpack_of(Order), Order(1, ["tea"])),
        (Serializer(str.encode, bytes.decode), "text"),
    ],
)
async def test_one_topic_can_have_a_serializer_of_its_own(
    aerobee_broker: EmbeddedBroker, serializer: Serializer, value: Any
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.producer("orders", serializer=serializer).send(value)
        options = ConsumerOptions(serializer=serializer)
        async with mq.consumer("orders", group="g", options=options) as inbox:
            assert (await inbox.get()).value == value


@pytest.mark.parametrize("of", [json_of, msgpack_of])
def test_models_of_pydantics_kind_are_taken(of: Callable[[type], Serializer]) -> None:
    serializer = of(Model)
    assert serializer.loads(serializer.dumps(Model(7))).number == 7


@pytest.mark.parametrize("of", [json_of, msgpack_of])
@pytest.mark.parametrize("value", [3, {"number": 1}, Order(cast(int, "one"), ["tea"])])
async def test_a_value_that_its_consumers_could_not_read_is_not_sent(
    aerobee_broker: EmbeddedBroker, of: Callable[[type], Serializer], value: Any
) -> None:
    async with aerobee_broker.connect() as mq:
        producer = mq.producer("orders", serializer=of(Order))
        with pytest.raises(Misuse, match="refuses this body"):
            await producer.send(value)
        await producer.send(Order(1, ["tea"]))
        options = ConsumerOptions(serializer=of(Order))
        async with mq.consumer("orders", group="g", options=options) as inbox:
            assert (await inbox.get()).value == Order(1, ["tea"])
            assert await inbox.get(timeout=0.1) is None


async def test_what_no_serializer_takes_is_misuse(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        for body in ("text", 5, {"n": 1}, None):
            with pytest.raises(Misuse, match="a body is bytes"):
                await mq.send("orders", body)
        with pytest.raises(Misuse, match="refuses this body"):
            await mq.producer("orders", serializer=JSON).send(object())
        await mq.send("orders", bytearray(b"x"))
        async with mq.consumer("orders", group="g") as inbox:
            with pytest.raises(Misuse, match="no serializer"):
                _ = (await inbox.get()).value
