"""Producers when something goes wrong in the middle: cancelled, closed, no answer, unsendable."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from sdk.reading import stored, transport_to
from waiting import until

from aerobee import (
    AerobeeError,
    Client,
    Closed,
    Misuse,
    Overloaded,
    Receipt,
    SendsFailed,
    Unconfirmed,
    Verdict,
    connect,
)
from aerobee.broker.store.refusals import Cause
from aerobee.client.producing.sender import Sender
from aerobee.protocol.wire.command import Command
from aerobee.testing import EmbeddedBroker


async def bodies(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    async with broker.connect() as mq:
        return [message.body for message in await stored(mq, topic)]


def deafen(mq: Client, broker: EmbeddedBroker) -> None:
    """Requests reach the broker, its answers do not reach the client."""
    transport_to(mq, broker.address).pause_reading()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": "\udcff"}, "UTF-8"),
        ({"tag": "\ud800"}, "UTF-8"),
        ({"order_key": "\ud800"}, "UTF-8"),
        ({"properties": {"a": "\udcff"}}, "UTF-8"),
        ({"properties": {"a": "x" * 40_000}}, "32767"),
    ],
)
async def test_one_message_that_cannot_be_sent_does_not_lose_its_neighbours(
    aerobee_broker: EmbeddedBroker, options: dict[str, Any], text: str
) -> None:
    async with aerobee_broker.connect() as mq:
        with pytest.raises(Misuse, match=text):
            await mq.send("orders", b"single", **options)
        async with mq.producer("orders", linger=0.01) as orders, asyncio.timeout(5):
            await orders.send(b"before")
            with pytest.raises(Misuse, match=text):
                await orders.send(b"never", **options)
            delivery = await orders.send(b"after")
            assert (await delivery.receipt()).ok
            await orders.flush()
            assert orders.buffered == 0
    assert sorted(await bodies(aerobee_broker, "orders")) == [b"after", b"before"]


async def test_a_buffered_failure_is_reported_though_someone_stopped_waiting_for_the_receipt(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")
        deafen(mq, aerobee_broker)
        orders = mq.producer("orders", linger=0.0, timeout=0.4)
        delivery = await orders.send(b"x")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await delivery.receipt()
        with pytest.raises(SendsFailed):
            await orders.flush()


async def test_an_answer_of_a_name_server_that_cannot_be_read_loses_nothing_in_silence(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aerobee_broker.connect() as mq, asyncio.timeout(5):
        orders = mq.producer("orders", linger=0.0)
        await (await orders.send(b"first")).receipt()
        garbage = Command(0, body=b'{"queueDatas": [{"nonsense": 1}]}')

        async def answer(_: Command) -> Command:
            return garbage

        monkeypatch.setattr(mq._core.routes, "name_request", answer)
        mq._core.routes._routes.clear()
        delivery = await orders.send(b"second")
        with pytest.raises(AerobeeError, match="not sent"):
            await delivery.receipt()
        await orders.send(b"third")
        with pytest.raises(SendsFailed):
            await orders.flush()
        assert orders.buffered == 0


async def test_a_send_that_waited_for_space_is_refused_once_the_block_is_left(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")
        transport = transport_to(mq, aerobee_broker.address)
        transport.pause_reading()
        async with mq.producer("orders", linger=5, buffer_bytes=1000) as orders:
            await orders.send(b"x" * 1000)
            waiting = asyncio.create_task(orders.send(b"late"))
            await until(lambda: orders._accumulator._space_waiters)
            assert not waiting.done()
            transport.resume_reading()
        with pytest.raises(Closed):
            await waiting
        assert orders.buffered == 0


async def test_closing_the_client_under_a_send_leaves_its_outcome_unknown(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")
        deafen(mq, aerobee_broker)
        sending = asyncio.create_task(mq.send("orders", b"second", timeout=30))
        await until(lambda: aerobee_broker.app.broker.stats.broker_put.nums == 2)
        await mq.close()
        with pytest.raises(Unconfirmed):
            await sending
    assert b"second" in await bodies(aerobee_broker, "orders")


async def test_a_waiter_for_a_connection_learns_that_the_client_was_closed(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")
        address = aerobee_broker.address
        await aerobee_broker.stop()
        with pytest.raises(Exception):  # noqa: B017  # so that the next try waits its turn
            await mq._core.remoting.connection(address)
        waiting = asyncio.create_task(mq._core.remoting.connection(address))
        sending = asyncio.create_task(mq.send("orders", b"second", timeout=5))
        await until(lambda: address in mq._core.remoting._opening)
        await mq.close()
        done, _ = await asyncio.wait([waiting, sending], timeout=5)
        assert [type(task.exception()) for task in (waiting, sending)] == [Closed, Closed]
        assert len(done) == 2


async def test_a_connection_being_made_is_closed_with_the_client() -> None:
    greeted, ended = asyncio.Event(), asyncio.Event()

    class Silent(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            greeted.set()

        def eof_received(self) -> None:
            ended.set()

    server = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        mq = await connect(f"mq://{address}", timeout=5)
        core = mq._core
        await core.remoting.close()
        core.remoting._closed = False
        greeted.clear()
        ended.clear()
        core.routes._brokers["b"] = {0: address}  # now a heartbeat is sent first
        opening = asyncio.create_task(core.remoting.connection(address))
        async with asyncio.timeout(20):
            await greeted.wait()
        await mq.close()
        async with asyncio.timeout(20):
            await ended.wait()
        with pytest.raises(Closed):
            await opening


async def test_entering_transactions_can_be_cancelled_and_tried_again(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")
        transport = transport_to(mq, aerobee_broker.address)
        transport.pause_reading()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await mq.transactions(
                    "orders", group="p", check=lambda _: Verdict.COMMIT
                ).__aenter__()
        transport.resume_reading()
        async with (
            mq.transactions("orders", group="p", check=lambda _: Verdict.COMMIT) as again,
            again.begin(b"second"),
        ):
            pass
        assert mq._core.presence._producers == {}


async def test_a_broker_that_is_its_own_name_server_tells_how_it_flushes(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with (
        connect(f"mq://{aerobee_broker.address}") as direct,
        aerobee_broker.connect() as named,
    ):
        receipts = [await mq.send("orders", b"x") for mq in (direct, named)]
        assert receipts[0].durability is receipts[1].durability


async def test_an_embedded_broker_that_cannot_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for settings in ({"noSuchSetting": 1}, {"bindAddress": "192.0.2.1"}):
        with pytest.raises(Exception):  # noqa: B017
            await EmbeddedBroker(**settings).start()
    await until(lambda: list(tmp_path.iterdir()) == [])


async def test_what_was_written_leaves_before_the_client_is_closed() -> None:
    """A program may end right after closing: what then waits in a buffer is lost."""
    received = 0
    ended = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        while piece := await reader.read(1 << 18):
            received += len(piece)
            await asyncio.sleep(0.01)
        writer.close()
        await writer.wait_closed()
        ended.set()

    async def send(address: str) -> None:
        async with connect(f"mq://{address}") as mq:
            for _ in range(24):
                await mq._core.remoting.oneway(address, Command(10, body=b"x" * (1 << 20)))

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.to_thread(lambda: asyncio.run(send(address)))
        async with asyncio.timeout(10):
            await ended.wait()
    assert received > 24 << 20


async def test_closing_does_not_wait_for_ever_for_a_broker_that_reads_nothing() -> None:
    class Deaf(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.pause_reading()
            transports.append(transport)

    transports: list[asyncio.Transport] = []
    server = await asyncio.get_running_loop().create_server(Deaf, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(3), connect(f"mq://{address}", timeout=0.3) as mq:
            connection = await mq._core.remoting.connection(address)
            connection.oneway(Command(10, body=b"x" * (16 << 20)))
        assert connection._transport.get_write_buffer_size() == 0
        for transport in transports:
            transport.abort()


async def test_a_request_that_cannot_be_written_leaves_nothing_waiting(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        connection = await mq._core.remoting.connection(aerobee_broker.namesrv)
        with pytest.raises(UnicodeEncodeError):
            await mq.send("\udcff", b"x")
        assert connection.conversation.in_flight == 0


async def test_a_failure_that_a_receipt_has_reported_is_not_reported_again(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with (
        aerobee_broker.connect(timeout=0.3) as mq,
        mq.producer("orders", linger=0.001) as orders,
    ):
        await (await orders.send(b"warm")).receipt()
        await aerobee_broker.stop()
        deliveries = [await orders.send(b"%d" % number) for number in range(3)]
        await until(lambda: orders.buffered == 0)  # failed long before `receipt` is called
        for delivery in deliveries:
            with pytest.raises(AerobeeError):
                await delivery.receipt()


async def test_a_failure_gives_back_the_body_as_it_was_given(
    aerobee_broker: EmbeddedBroker,
) -> None:
    large = b"compressible " * 1000
    async with aerobee_broker.connect(timeout=0.3) as mq:
        with pytest.raises(SendsFailed) as caught:
            async with mq.producer("orders", linger=0.001) as orders:
                await (await orders.send(b"warm")).receipt()
                await aerobee_broker.stop()
                await orders.send(large)
    assert [body for body, _ in caught.value.failures] == [large]


async def test_more_sends_at_once_than_a_timeout_can_carry_all_succeed(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")
        sends = (mq.send("orders", b"%d" % number, timeout=2) for number in range(20_000))
        found = await asyncio.gather(*sends, return_exceptions=True)
        assert [row for row in found if not isinstance(row, Receipt)][:3] == []


async def test_sends_that_never_get_their_turn_say_so_and_were_not_sent(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")
        deafen(mq, aerobee_broker)
        sends = (mq.send("orders", b"%d" % number, timeout=0.5) for number in range(5_000))
        found = await asyncio.gather(*sends, return_exceptions=True)
        kinds = {type(row) for row in found}
        assert kinds == {Unconfirmed, Overloaded}
        unsent = {b"%d" % number for number, row in enumerate(found) if type(row) is Overloaded}
        assert unsent.isdisjoint(await bodies(aerobee_broker, "orders"))


async def test_a_send_that_stops_waiting_for_its_turn_passes_it_on(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")
        tasks = [asyncio.create_task(mq.send("orders", b"x")) for _ in range(4000)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.result().ok for task in tasks if not task.cancelled())
        assert (await mq.send("orders", b"last")).ok
        assert mq._core.sender._in_flight._free == 1024


async def test_a_caller_that_was_busy_until_its_request_is_written_gets_its_receipt(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = Sender._reach

    async def reach_late(*arguments: Any) -> Any:
        found = await reach(*arguments)
        time.sleep(0.4)  # noqa: ASYNC251  # as a program does that computes between its sends
        return found

    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")  # the route is known then
        monkeypatch.setattr(Sender, "_reach", reach_late)
        assert (await mq.send("orders", b"x", timeout=0.3)).queue_offset >= 0


async def test_a_send_ends_in_time_while_no_broker_is_the_master(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")
        refusals = aerobee_broker.app.broker.store.refusals
        refusals.set(Cause.SUPERSEDED, "another broker is the master")
        async with asyncio.timeout(20):
            with pytest.raises(AerobeeError):
                await mq.send("orders", b"x", timeout=0.5)
