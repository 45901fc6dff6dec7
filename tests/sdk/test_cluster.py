"""Several brokers behind one name server; other event loops."""

import asyncio
import sys

import pytest
from sdk.reading import take, transport_to
from sdk.two_brokers import on_both, pair
from waiting import until

from aerobee import Client, NotFound, RequestTimeout, Unconfirmed, connect
from aerobee.client import session
from aerobee.protocol.files.ids import encode_host, offset_message_id, parse_offset_message_id
from aerobee.testing import EmbeddedBroker


async def test_a_topic_on_two_brokers_is_written_and_read_on_both() -> None:
    async with EmbeddedBroker(brokerName="first") as first:
        second = await pair(first)
        try:
            async with connect(first.url) as mq:
                await on_both(mq, "orders", queues=2)
                receipts = [await mq.send("orders", b"%d" % number) for number in range(40)]
                assert {row.queue.broker_name for row in receipts} == {"first", "second"}
                async with mq.consumer("orders", group="g") as inbox:
                    found = await take(inbox, 40, 20)
                assert {int(row.body) for row in found} == set(range(40))
        finally:
            await second.stop()


async def test_a_message_is_found_by_its_offset_id_on_the_broker_that_has_it() -> None:
    async with EmbeddedBroker(brokerName="first") as first:
        second = await pair(first)
        try:
            async with connect(first.url) as mq:
                await on_both(mq, "orders", queues=1)
                receipts = [await mq.send("orders", b"%d" % number) for number in range(4)]
                for number, receipt in enumerate(receipts):
                    found = await mq.message(receipt.offset_message_id.lower())
                    assert found.body == b"%d" % number
                    assert found.broker == receipt.queue.broker_name
        finally:
            await second.stop()


async def test_an_offset_id_cannot_make_a_client_dial_an_address() -> None:
    dialled = []

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.append(writer.get_extra_info("peername"))
        writer.close()

    trap = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with trap, EmbeddedBroker() as broker, connect(broker.url) as mq:
        receipt = await mq.send("orders", b"real")
        real = parse_offset_message_id(receipt.offset_message_id)[1]
        host = encode_host(*trap.sockets[0].getsockname())
        for topic in (None, "orders"):
            with pytest.raises(NotFound, match="no broker of this cluster"):
                await mq.message(offset_message_id(host, real), topic=topic)
    assert dialled == []


async def test_sends_go_to_the_other_broker_when_one_is_gone() -> None:
    async with EmbeddedBroker(brokerName="first") as first:
        second = await pair(first)
        stopped = False
        try:
            async with connect(first.url) as mq:
                await on_both(mq, "orders", queues=2)
                await mq.send("orders", b"warm")
                await second.stop()
                stopped = True
                receipts = [await mq.send("orders", b"%d" % number) for number in range(20)]
                assert {row.queue.broker_name for row in receipts} == {"first"}
        finally:
            if not stopped:
                await second.stop()


async def test_the_newest_messages_with_a_key_are_found_on_two_brokers() -> None:
    async with EmbeddedBroker(brokerName="first") as first:
        second = await pair(first)
        try:
            async with connect(first.url) as mq:
                await on_both(mq, "orders", queues=1)
                for _ in range(100):
                    await mq.send("orders", b"x", key="k")

                async def by_key(limit: int | None = None) -> list[int]:
                    found = mq.find("orders", key="k", limit=limit)
                    return [row.stored.store_timestamp async for row in found]

                async def all_are_indexed() -> bool:
                    return len(await by_key()) == 100

                await until(all_are_indexed)
                stored = await by_key()
                assert stored == sorted(stored)
                assert await by_key(limit=10) == stored[-10:]
                assert await by_key(limit=0) == []
        finally:
            await second.stop()


async def test_timers_of_two_brokers_are_listed_by_their_time_and_can_all_be_recalled() -> None:
    async with EmbeddedBroker(brokerName="first") as first:
        second = await pair(first)
        try:
            async with connect(first.url) as mq:
                await on_both(mq, "orders", queues=1)
                receipts = [
                    await mq.send("orders", b"x", delay=1000 - number) for number in range(6)
                ]
                assert {row.queue.broker_name for row in receipts} == {"first", "second"}
                soonest_first = [row.message_id for row in reversed(receipts)]

                async def all_are_listed() -> bool:  # a timer is listed once it is dispatched
                    return len(await mq.admin.timers()) == 6

                await until(all_are_listed)
                assert [row["msgId"] for row in await mq.admin.timers()] == soonest_first
                assert [row["msgId"] for row in await mq.admin.timers(limit=3)] == soonest_first[:3]
                for row in receipts:
                    assert row.recall_handle is not None
                    assert await mq.recall("orders", row.recall_handle) == row.message_id
        finally:
            await second.stop()


def silence(mq: Client, address: str) -> None:
    """Nothing is received on this connection any more, as behind a firewall that dropped it."""
    transport_to(mq, address).pause_reading()


async def test_a_connection_that_answers_no_heartbeat_is_recreated(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HEARTBEAT_SECONDS", 0.2)
    async with aerobee_broker.connect(timeout=0.3) as mq:
        await mq.send("orders", b"one")
        async with mq.consumer("orders", group="g") as inbox, asyncio.timeout(5):
            await (await inbox.get()).ack()
            silence(mq, aerobee_broker.address)
            async with aerobee_broker.connect() as other:
                await other.send("orders", b"two")
            assert (await inbox.get()).body == b"two"


async def test_a_client_that_only_sends_recreates_a_silent_connection_too(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HEARTBEAT_SECONDS", 0.2)
    async with aerobee_broker.connect(timeout=0.3) as mq:
        await mq.send("orders", b"one")
        silence(mq, aerobee_broker.address)

        async def is_sent() -> bool:
            try:
                return (await mq.send("orders", b"two")).ok
            except Unconfirmed:
                return False

        await until(is_sent, 20)


async def test_a_silent_connection_to_a_name_server_is_recreated(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect(timeout=0.3) as mq:
        await mq.send("orders", b"one")
        silence(mq, aerobee_broker.namesrv)
        with pytest.raises(RequestTimeout):
            await mq.queues("orders")
        assert await mq.queues("orders")


PROGRAM = """
import asyncio, sys
from aerobee import NotFound, RequestTimeout, connect
from aerobee.client import session
from aerobee.protocol.files.ids import encode_host, offset_message_id, parse_offset_message_id

async def main():
    async with connect(sys.argv[1]) as mq:
        async with mq.producer("orders", linger=0.001) as orders:
            for number in range(200):
                await orders.send(b"%d" % number)
        async with mq.consumer("orders", group=sys.argv[2]) as inbox:
            count = 0
            async for message in inbox:
                count += 1
                if count == 200:
                    await message.ack()
                    break
    print("done", type(asyncio.get_event_loop_policy()).__module__)

if sys.argv[2] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main(), debug=True)
"""


@pytest.mark.parametrize("loop", ["uvloop", "debug"])
async def test_the_sdk_runs_on_uvloop_and_in_debug_mode(
    aerobee_broker: EmbeddedBroker, loop: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, aerobee_broker.url, loop),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert out.startswith(b"done"), err.decode()
    assert b"Warning" not in err and b"never retrieved" not in err, err.decode()
