"""Retention at a slave: what is pending at its master outlives the files of both."""

from __future__ import annotations

from pathlib import Path

from peers.in_process import Client, send_ext
from structlog.testing import capture_logs
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.files import properties
from aerobee.protocol.names import TIMER_TOPIC, TRANSACTION_HALF_TOPIC
from aerobee.protocol.wire.codes import RequestCode
from ha.pairs import in_step, running_master, running_slave, send_many

EXPIRED = {"file_reserved_time": 0, "clean_resource_interval": 100}
PENDING = [  # properties: a timer, a half message, a delayed message
    {"TIMER_DELAY_SEC": "3600"},
    {"TRAN_MSG": "true", "PGROUP": "shop"},
    {"DELAY": "18"},
]


def newest(app: AppBroker, topic: str) -> int:
    """Where the newest message of the topic's queue 0 is in the log."""
    store = app.broker.store
    entry = store.queue_entry(topic, 0, store.max_offset(topic, 0) - 1)
    assert entry is not None
    return entry[0]


async def test_a_slave_keeps_a_file_until_its_master_has_stored_again_what_is_pending_in_it(
    tmp_path: Path,
) -> None:
    async with (
        running_master(tmp_path, **EXPIRED) as master,
        running_slave(tmp_path, master, **EXPIRED) as slave,
    ):
        client = await Client.connect(master)
        for texts in PENDING:
            ext = send_ext("T") | {"i": properties.encode(texts)}
            assert (await client.request(RequestCode.SEND_MESSAGE_V2, ext, b"pending")).code == 0
        await send_many(client, "T", 300)
        await in_step(slave, master)
        ours, theirs = slave.broker.store, master.broker.store
        with capture_logs() as lines:
            ours.clean_expired()
            kept = "an expired file is kept: the master has not removed it yet, or is not known"
            await until(lambda: kept in {line["event"] for line in lines})
        assert ours.min_physical_offset == 0
        theirs.clean_expired()
        await until(lambda: theirs.min_physical_offset > 0, 30)

        def is_cleaned() -> bool:
            ours.clean_expired()
            return ours.min_physical_offset > 0

        await until(is_cleaned, 30)
        for topic in (TIMER_TOPIC, TRANSACTION_HALF_TOPIC):  # the delayed one is a timer now
            assert newest(slave, topic) >= ours.min_physical_offset
        assert ours.max_offset(TIMER_TOPIC, 0) == 3, "the timer, its copy, the delayed message"
        await client.close()
