"""What the answer to a send guarantees about the disk."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import Client, held_sync, pull_ext, running_broker, send_ext
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.store.files.real_disk import RealFile
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.files.ids import parse_offset_message_id
from aerobee.protocol.files.record import decode_record
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ

# --- durability


CODECS = {"JSON": JSON, "ROCKETMQ": ROCKETMQ, "MSGPACK": MSGPACK}


@pytest.fixture(params=list(CODECS.values()), ids=list(CODECS))
def codec(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def test_with_sync_flush_an_answer_means_that_the_message_is_on_disk(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, flush_disk_type="SYNC_FLUSH") as app:
        for codec in CODECS.values():
            client = await Client.connect(app, codec)
            await client.request(310, send_ext("Orders"))
            answers = await client.ask_all(
                [client.command(310, send_ext("Orders", n % 4), b"x" * 100) for n in range(64)]
            )
            assert [answer.code for answer in answers] == [0] * 64
            _, last = parse_offset_message_id(answers[-1].ext["msgId"])
            assert app.broker.store.flushed_offset > last
            batch = encode_batch([(0, b"x", "")] * 3)
            answer = await client.request(320, send_ext("Orders", m="true"), batch)
            _, last = parse_offset_message_id(answer.ext["msgId"].split(",")[-1])
            assert app.broker.store.flushed_offset > last
            await client.close()


@pytest.mark.usefixtures("group_commit_in_python")
async def test_a_message_that_is_late_on_disk_is_reported_as_stored(tmp_path: Path) -> None:
    async with running_broker(
        tmp_path, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=200
    ) as app:
        client = await Client.connect(app)
        await client.request(310, send_ext("Orders"))
        waits = client.command(310, send_ext("Orders"), b"x")
        no_wait = client.command(310, send_ext("Orders", i="UNIQ_KEY\x01u\x02WAIT\x01false"), b"x")
        delayed = client.command(310, send_ext("Orders", i="DELAY\x013\x02WAIT\x01true"), b"x")
        other = client.command(310, send_ext("Orders", i="MAY_WAIT\x01false\x02WAIT\x01falsely"))
        with held_sync(app):
            answers = await client.ask_all([waits, no_wait, delayed, other])
        late, at_once, general, not_meant = answers
        assert late.code == ResponseCode.FLUSH_DISK_TIMEOUT == general.code
        assert not_meant.code == ResponseCode.FLUSH_DISK_TIMEOUT, "only WAIT=false is not to wait"
        assert late.ext["queueOffset"] == "1" and late.ext["msgId"] and late.remark
        assert at_once.code == 0
        await client.close()


@pytest.mark.usefixtures("group_commit_in_python")
async def test_with_sync_flush_no_reader_sees_a_message_before_it_is_on_disk(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, flush_disk_type="SYNC_FLUSH") as app:
        client = await Client.connect(app)
        await client.request(310, send_ext("Orders"), b"flushed")
        text = "UNIQ_KEY\x01u\x02KEYS\x01k\x02WAIT\x01false"
        key = {"topic": "Orders", "key": "k", "maxNum": "9"}
        key |= {"beginTimestamp": "0", "endTimestamp": str(1 << 60)}
        queue = {"topic": "Orders", "queueId": "0"}
        time = queue | {"timestamp": str(1 << 60)}
        with held_sync(app):
            sent = await client.request(310, send_ext("Orders", i=text), b"not flushed")
            _, offset = parse_offset_message_id(sent.ext["msgId"])
            by_id, by_key, pulled, end, after = await client.ask_all(
                [
                    client.command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}),
                    client.command(RequestCode.QUERY_MESSAGE, key),
                    client.command(RequestCode.PULL_MESSAGE, pull_ext("Orders", offset=1)),
                    client.command(RequestCode.GET_MAX_OFFSET, queue),
                    client.command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, time),
                ]
            )
            assert app.broker.store.flushed_offset == offset
        assert by_id.code == ResponseCode.SYSTEM_ERROR and f"to {offset}" in (by_id.remark or "")
        assert by_key.code == ResponseCode.QUERY_NOT_FOUND
        assert pulled.code == ResponseCode.PULL_NOT_FOUND
        assert end.ext["offset"] == after.ext["offset"] == "1"
        await until(lambda: app.broker.store.flushed_offset > offset)
        by_id = await client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        assert decode_record(memoryview(by_id.body)).body == b"not flushed"
        await client.close()


@pytest.mark.usefixtures("group_commit_in_python")
async def test_a_failed_sync_fails_the_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path, flush_disk_type="SYNC_FLUSH") as app:
        client = await Client.connect(app)
        await client.request(310, send_ext("Orders"))

        def broken(_file: RealFile) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(RealFile, "sync", broken)
        answers = await client.ask_all(
            [client.command(310, send_ext("Orders"), b"x") for _ in range(3)]
        )
        assert all(answer.code not in (0, 10, 11, 12) for answer in answers)
        after = await client.request(310, send_ext("Orders"), b"x")
        assert after.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await client.close()


async def test_a_store_that_refuses_says_why(app: AppBroker, client: Client) -> None:
    await client.request(310, send_ext("Orders"))
    app.broker.store._life._refuse_puts()
    answer = await client.request(310, send_ext("Orders"), b"x")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and "shutting down" in (
        answer.remark or ""
    )


async def test_a_store_that_breaks_fails_these_sends_and_no_more(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.request(310, send_ext("Orders"))
    with monkeypatch.context() as patch:

        def broken(*_: object) -> None:
            raise RuntimeError("planted")

        patch.setattr(CommitLog, "append_rows", broken)
        patch.setattr(CommitLog, "append", broken)
        answers = await client.ask_all([client.command(310, send_ext("Orders")) for _ in range(3)])
        assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR] * 3
        assert "planted" in (answers[0].remark or "")
    assert (await client.request(310, send_ext("Orders"), b"x")).code == 0


async def test_zeros_in_properties_survive_a_recovery_without_checksums(tmp_path: Path) -> None:
    """Where records have no checksum zeros look torn: such a record gets one, on every path."""
    settings: dict[str, Any] = {"enabled_append_prop_crc": False}
    async with running_broker(tmp_path, **settings) as app:
        client = await Client.connect(app)
        for text in ("A\x01b", "A\x01b\0", "A\x01c"):
            answer = await client.request(310, send_ext("Zeros", i=text), b"x")
            assert answer.code == 0, answer.remark
        record = app.broker.store.record_at(int(answer.ext["msgId"][16:], 16))
        assert record is not None and b"__CRC32#" not in bytes(record)
        end = app.broker.store.max_physical_offset
        app.broker.store.flush.step()
        shutil.copytree(tmp_path / "store", tmp_path / "killed" / "store")
        await client.close()
    async with running_broker(tmp_path / "killed", **settings) as app:
        assert app.broker.store.max_physical_offset == end
