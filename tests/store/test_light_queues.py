"""Light queues (LMQ) that RocketMQ has left in a store: kept and readable; none is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.verify import verify
from aerobee.broker.store.message_store import MessageStore
from aerobee.protocol.files.queue_entry import ENTRY

from .conftest import SMALL, OpenStore, abandon, dispatch, message, read_all

LIGHT = "%LMQ%a"


def put_as_rocketmq_does(store: MessageStore, folder: Path, count: int) -> None:
    """Messages to T, each of which is in two light queues, too."""
    entries = b""
    for number in range(count):
        text = f"INNER_MULTI_DISPATCH\x01%LMQ%b,{LIGHT}\x02INNER_MULTI_QUEUE_OFFSET\x015,{number}"
        result = store.put([message(body=b"%d" % number, properties=text)])[0]
        entries += ENTRY.pack(result.physical_offset, result.size, 0)
    dispatch(store)
    queue = folder / "store" / "consumequeue" / LIGHT / "0"
    queue.mkdir(parents=True)
    (queue / f"{0:020}").write_bytes(entries.ljust(SMALL["mapped_file_size_consume_queue"], b"\0"))


@pytest.mark.parametrize("end", [MessageStore.close, abandon])
def test_light_queues_of_rocketmq_are_kept(
    open_store: OpenStore, tmp_path: Path, end: object
) -> None:
    store = open_store()
    put_as_rocketmq_does(store, tmp_path, 10)
    assert callable(end)
    end(store)
    (tmp_path / "store" / "checkpoint").unlink(missing_ok=True)  # it is not ours
    before = (tmp_path / "store" / "consumequeue" / LIGHT / "0" / f"{0:020}").read_bytes()
    again = open_store()
    assert [m.body for m in read_all(again, LIGHT)] == [b"%d" % number for number in range(10)]
    assert len(read_all(again)) == 10
    again.close()
    after = (tmp_path / "store" / "consumequeue" / LIGHT / "0" / f"{0:020}").read_bytes()
    assert after == before
    assert verify(open_directory(str(tmp_path / "store")), lambda _: None).problems == []


def test_an_entry_of_a_light_queue_that_its_record_does_not_know_is_dropped(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    put_as_rocketmq_does(store, tmp_path, 10)
    store.close()
    path = tmp_path / "store" / "consumequeue" / LIGHT / "0" / f"{0:020}"
    data = path.read_bytes()
    path.write_bytes(data[: 9 * 20] + data[:20] + data[10 * 20 :])
    assert open_store().max_offset(LIGHT, 0) == 9
