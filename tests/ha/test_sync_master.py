"""SYNC_MASTER: SEND_OK means that enough brokers have the message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from struct import pack

import pytest
from peers.in_process import Client, send_ext
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from ha.pairs import in_step, running_master, running_slave, send, send_many

SYNC = {"broker_role": "SYNC_MASTER", "slave_timeout": 400}


class FakeSlave:
    """A slave that reports what the test tells it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, master: AppBroker) -> FakeSlave:
        port = master.broker.addresses.ha_port
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def report(self, *ends: int) -> None:
        self.writer.write(b"".join(pack(">q", end) for end in ends))
        await self.writer.drain()

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


def waiting(master: AppBroker) -> bool:
    """Whether a slave is linked and has said how far it is."""
    return any(link["inSync"] for link in master.broker.replication.slaves())


async def test_a_send_is_acknowledged_when_the_slave_has_it(tmp_path: Path) -> None:
    async with running_master(tmp_path, **SYNC) as master, running_slave(tmp_path, master) as slave:
        await until(lambda: waiting(master))
        client = await Client.connect(master)
        for number in range(50):
            assert await send(client, "orders", b"%d" % number) == 0
            assert slave.broker.store.max_physical_offset == (
                master.broker.store.max_physical_offset
            )
        await send_many(client, "orders", 300)
        await client.close()


async def test_without_a_slave_a_send_is_stored_and_answered_so(tmp_path: Path) -> None:
    async with running_master(tmp_path, **SYNC) as master:
        client = await Client.connect(master)
        answer = await client.request(RequestCode.SEND_MESSAGE_V2, send_ext("orders"), b"x")
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert answer.ext["queueOffset"] == "0" and answer.ext["msgId"]
        answer = await client.request(RequestCode.SEND_MESSAGE_V2, send_ext("orders"), b"x")
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE  # on the fast path too
        assert answer.ext["queueOffset"] == "1" and answer.ext["msgId"]
        await client.close()


async def test_a_slave_that_does_not_answer_is_a_timeout(tmp_path: Path) -> None:
    async with running_master(tmp_path, **SYNC) as master:
        client = await Client.connect(master)
        slave = await FakeSlave.connect(master)
        await slave.report(0)
        await until(lambda: waiting(master))
        for queue_offset in ("0", "1"):
            answer = await client.request(RequestCode.SEND_MESSAGE_V2, send_ext("orders"), b"x")
            assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert answer.ext["queueOffset"] == queue_offset
        await slave.close()
        await client.close()


async def test_first_report_beyond_the_log_acks_nothing(tmp_path: Path) -> None:
    async with running_master(tmp_path, **SYNC) as master:
        client = await Client.connect(master)
        await send(client, "orders", b"x")
        slave = await FakeSlave.connect(master)
        await slave.report(1 << 61)
        assert await slave.reader.read() == b"", "the master ends the connection"
        assert await send(client, "orders", b"x") == ResponseCode.SLAVE_NOT_AVAILABLE
        await slave.close()
        await client.close()


async def test_an_ack_of_what_was_not_sent_counts_for_nothing(tmp_path: Path) -> None:
    async with running_master(tmp_path, **SYNC) as master:
        client = await Client.connect(master)
        await send(client, "orders", b"x")
        end = master.broker.store.max_physical_offset
        slave = await FakeSlave.connect(master)
        await slave.report(end)
        await until(lambda: waiting(master))
        await slave.report(end + (1 << 40))
        assert await slave.reader.read() == b"", "the master ends the connection"
        assert await send(client, "orders", b"x") == ResponseCode.SLAVE_NOT_AVAILABLE
        await slave.close()
        await client.close()


async def test_two_connections_of_one_host_are_one_copy(tmp_path: Path) -> None:
    async with running_master(tmp_path, **SYNC, in_sync_replicas=3) as master:
        client = await Client.connect(master)
        slaves = [await FakeSlave.connect(master) for _ in range(2)]
        for slave in slaves:
            await slave.report(0)
        await until(lambda: len(master.broker.replication.slaves()) == 2 and waiting(master))
        assert await send(client, "orders", b"x") == ResponseCode.SLAVE_NOT_AVAILABLE
        for slave in slaves:
            await slave.close()
        await client.close()


async def test_two_slaves_are_two_copies_by_their_ids(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path, **SYNC, in_sync_replicas=3) as master,
        running_slave(tmp_path, master, 1) as one,
    ):
        client = await Client.connect(master)
        await until(lambda: waiting(master))
        assert await send(client, "orders", b"x") == ResponseCode.SLAVE_NOT_AVAILABLE
        async with running_slave(tmp_path, master, 2) as two:
            await in_step(two, master)

            async def is_acknowledged() -> bool:
                return await send(client, "orders", b"x") == 0

            await until(is_acknowledged)
            assert await is_acknowledged()
            end = master.broker.store.max_physical_offset
            assert one.broker.store.max_physical_offset == end
            assert two.broker.store.max_physical_offset == end
        await client.close()


async def test_a_client_that_does_not_want_to_wait_does_not(tmp_path: Path) -> None:
    async with running_master(tmp_path, **SYNC) as master:
        client = await Client.connect(master)
        text = properties.encode({"UNIQ_KEY": "A" * 32, "WAIT": "false"})
        for _ in range(2):
            ext = send_ext("orders") | {"i": text}
            answer = await client.request(RequestCode.SEND_MESSAGE_V2, ext, b"x")
            assert answer.code == 0
        await client.close()


async def test_a_batch_waits_too(tmp_path: Path) -> None:
    async with running_master(tmp_path, **SYNC) as master:
        client = await Client.connect(master)
        await send(client, "orders", b"x")
        body = encode_batch([(0, b"a", ""), (0, b"b", "")])
        ext = send_ext("orders") | {"m": "true"}
        answer = await client.request(RequestCode.SEND_BATCH_MESSAGE, ext, body)
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        async with running_slave(tmp_path, master) as slave:
            await in_step(slave, master)
            await until(lambda: waiting(master))
            answer = await client.request(RequestCode.SEND_BATCH_MESSAGE, ext, body)
            assert answer.code == 0
            assert slave.broker.store.max_physical_offset == (
                master.broker.store.max_physical_offset
            )
        await client.close()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_sync_flush_slave_acks_what_is_on_disk(tmp_path: Path, flush: str) -> None:
    async with (
        running_master(tmp_path, **SYNC, flush_disk_type=flush) as master,
        running_slave(tmp_path, master, flush_disk_type="SYNC_FLUSH") as slave,
    ):
        await until(lambda: waiting(master))
        client = await Client.connect(master)
        for _ in range(20):
            assert await send(client, "orders", b"x") == 0
            store = slave.broker.store
            assert store.flushed_offset == master.broker.store.max_physical_offset
            if flush == "SYNC_FLUSH":
                assert master.broker.store.flushed_offset == store.flushed_offset
        await client.close()


async def test_an_ack_waits_for_the_disk_of_a_sync_flush_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_master(tmp_path, **SYNC) as master,
        running_slave(tmp_path, master, flush_disk_type="SYNC_FLUSH") as slave,
    ):
        await until(lambda: waiting(master))
        client = await Client.connect(master)
        assert await send(client, "orders", b"x") == 0
        flush = slave.broker.store.flush
        monkeypatch.setattr(flush, "ask", lambda _end: None)  # its disk hangs
        assert await send(client, "orders", b"x") == ResponseCode.FLUSH_SLAVE_TIMEOUT
        monkeypatch.undo()
        flush.ask(slave.broker.store.max_physical_offset)
        assert await send(client, "orders", b"x") == 0
        await client.close()


async def test_consumers_see_what_no_slave_has(tmp_path: Path) -> None:
    async with running_master(tmp_path, **SYNC) as master:
        client = await Client.connect(master)
        await send(client, "orders", b"x")
        assert master.broker.store.max_offset("orders", 0) == 1
        await client.close()


async def test_a_silent_slave_is_dropped(tmp_path: Path) -> None:
    async with running_master(tmp_path, **SYNC, ha_housekeeping_interval=600) as master:
        slave = await FakeSlave.connect(master)
        await slave.report(0)
        await until(lambda: waiting(master))
        assert await asyncio.wait_for(slave.reader.read(), 5) == b""
        assert not master.broker.replication.slaves()
        await slave.close()


async def test_a_master_sends_heartbeats_when_nothing_else_is_sent(tmp_path: Path) -> None:
    async with running_master(tmp_path, ha_send_heartbeat_interval=100) as master:
        slave = await FakeSlave.connect(master)
        await slave.report(0)
        head = await asyncio.wait_for(slave.reader.readexactly(12), 5)
        assert head == pack(">qi", 0, 0)
        await slave.close()


async def test_flow_control_bounds_what_a_slave_is_sent(tmp_path: Path) -> None:
    limited = {"ha_flow_control_enable": True, "max_ha_transfer_byte_in_second": 200_000}
    sized = {"ha_transfer_batch_size": 32 << 10}
    async with running_master(tmp_path, **limited, **sized) as master:
        client = await Client.connect(master)
        await send_many(client, "orders", 1000, size=800)
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with running_slave(tmp_path, master) as slave:
            await in_step(slave, master)
        size = master.broker.store.max_physical_offset
        assert loop.time() - began > size / 250_000 - 1.5
        await client.close()
