"""Transactions against a real broker in the test's process."""

import asyncio
from typing import Any

import pytest

from aerobee import Client, Half, Message, Verdict
from aerobee.testing import EmbeddedBroker


async def never(message: Message) -> Verdict:
    raise AssertionError(f"nobody should ask about {message}")


async def bodies(mq: Client, topic: str = "orders") -> list[bytes]:
    return sorted([message.body async for message in mq.find(topic)])


async def test_leaving_the_block_commits_and_rollback_rolls_back(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"0 plain")
        async with mq.transactions("orders", group="pay", check=never) as transactions:
            async with transactions.begin(b"1 committed", tag="t", key="k") as half:
                assert half.receipt.message_id
                assert await bodies(mq) == [b"0 plain"]  # a half message is invisible
            async with transactions.begin(b"2 rolled back") as half:
                half.rollback()
            with pytest.raises(ZeroDivisionError):
                async with transactions.begin(b"3 rolled back, then failed") as half:
                    half.rollback()
                    raise ZeroDivisionError
        assert await bodies(mq) == [b"0 plain", b"1 committed"]
        [found] = [row async for row in mq.find("orders", key="k")]
        assert found.tag == "t"


@pytest.mark.parametrize("verdict", [Verdict.COMMIT, Verdict.ROLLBACK])
async def test_after_an_exception_the_check_decides_at_once(
    aerobee_broker: EmbeddedBroker, verdict: Verdict
) -> None:
    asked = []

    async def check(message: Message) -> Verdict:
        asked.append((message.body, message.keys, message.topic, message.properties["n"]))
        return verdict

    async with (
        aerobee_broker.connect() as mq,
        mq.transactions("orders", group="pay", check=check) as transactions,
    ):
        await mq.send("orders", b"0 plain")
        body = b"x" * 9999  # travels compressed
        with pytest.raises(ZeroDivisionError):
            async with transactions.begin(body, key="k", properties={"n": "1"}) as half:
                raise ZeroDivisionError  # perhaps after the local commit: only the check knows
        assert asked == [(body, ["k"], "orders", "1")] and half.verdict is verdict
        committed = [body] if verdict is Verdict.COMMIT else []
        assert await bodies(mq) == [b"0 plain", *committed]
        await aerobee_broker.advance(minutes=2)
        await asyncio.sleep(0.05)
        assert len(asked) == 1  # the broker knows and does not ask


@pytest.mark.parametrize("ending", ["the task is cancelled", "the check fails", "unknown"])
async def test_what_is_not_known_is_left_to_the_brokers_check(
    aerobee_broker: EmbeddedBroker, ending: str
) -> None:
    asked = []

    async def check(message: Message) -> Verdict:
        asked.append(message.body)
        if len(asked) == 1 and ending == "the check fails":
            raise OSError("no database now")
        return Verdict.UNKNOWN if len(asked) == 1 and ending == "unknown" else Verdict.COMMIT

    async with (
        aerobee_broker.connect() as mq,
        mq.transactions("orders", group="pay", check=check) as transactions,
    ):
        begun = asyncio.Event()

        async def work() -> None:
            async with transactions.begin(b"paid"):
                begun.set()
                if ending == "the task is cancelled":
                    await asyncio.Event().wait()
                raise ZeroDivisionError

        task = asyncio.create_task(work())
        await begun.wait()
        if ending == "the task is cancelled":
            task.cancel()
        await asyncio.wait([task])
        assert len(asked) == (0 if task.cancelled() else 1)
        async with asyncio.timeout(20):
            while await bodies(mq) != [b"paid"]:
                await aerobee_broker.advance(seconds=40)
                await asyncio.sleep(0.05)


async def test_a_listener_decides(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        async with mq.transactions("orders", group="pay", check=never) as transactions:
            await transactions.send(b"yes", lambda half: Verdict.COMMIT)

            async def refuse(half: Half) -> Verdict:
                return Verdict.ROLLBACK

            await transactions.send(b"no", refuse)
        assert await bodies(mq) == [b"yes"]


async def test_the_broker_asks_about_an_undecided_transaction(
    aerobee_broker: EmbeddedBroker,
) -> None:
    asked: list[bytes] = []

    async def check(message: Message) -> Verdict:
        asked.append(message.body)
        return Verdict.COMMIT if message.keys == ["good"] else Verdict.ROLLBACK

    async with (
        aerobee_broker.connect() as mq,
        mq.transactions("orders", group="pay", check=check) as transactions,
    ):
        for key in ("good", "bad"):
            async with transactions.begin(key.encode(), key=key) as half:
                half.verdict = Verdict.UNKNOWN
        async with asyncio.timeout(20):
            while len(asked) < 2 or await bodies(mq) != [b"good"]:
                await aerobee_broker.advance(seconds=40)
                await asyncio.sleep(0.05)
        for _ in range(3):  # final: not checked or delivered again
            await aerobee_broker.advance(minutes=2)
            await asyncio.sleep(0.05)
        assert await bodies(mq) == [b"good"]


async def test_a_verdict_that_is_forgotten_leaves_it_to_the_check(
    aerobee_broker: EmbeddedBroker,
) -> None:
    asked = []

    def forgotten(half: Half) -> Any:
        return None

    def check(message: Message) -> Any:
        asked.append(message.body)
        return Verdict.COMMIT if len(asked) > 1 else None

    async with (
        aerobee_broker.connect() as mq,
        mq.transactions("orders", group="shop", check=check) as transactions,
        mq.consumer("orders", group="billing") as inbox,
    ):
        await transactions.send(b"x", forgotten)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await inbox.get()
        while len(asked) < 2:
            await aerobee_broker.advance(seconds=60)
            await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            assert (await inbox.get()).body == b"x"
