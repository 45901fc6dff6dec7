"""The services as a whole, over a store that lost its last moments."""

from pathlib import Path

import pytest
from services.services_world import HOST
from structlog.testing import capture_logs

from aerobee.broker.base.clock import Clock
from aerobee.broker.daemon.service_life import ServiceLife
from aerobee.broker.daemon.wiring import make_broker
from aerobee.broker.handlers.context import Broker
from aerobee.broker.settings import load_settings
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.results import PutResult
from aerobee.protocol.files.record import Message


def load(root: Path) -> Broker:
    wanted = {"storePathRootDir": root, "mappedFileSizeCommitLog": 1 << 20, "brokerName": "b"}
    broker = make_broker(load_settings(None, wanted, {}), Clock())
    life = ServiceLife(broker)
    life.make_folder()
    life.load(lambda _done, _all: None)
    return broker


def send(broker: Broker, body: bytes) -> PutResult:
    message = Message("T", 0, body, born_host=HOST, store_host=HOST)
    (result,) = broker.store.put([message])
    assert result.ok
    while broker.store.reput.step():
        pass
    return result


def abandon(broker: Broker) -> None:
    """As a power failure, except for the files."""
    broker.store.abandon()
    broker.timers.close()


def lose_from(root: Path, put: PutResult) -> None:
    """The log ends before this message, as after a power failure."""
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(put.physical_offset)
        file.write(bytes(10 * put.size))


def test_progress_ahead_of_what_a_power_failure_left_skips_no_message_that_comes_after(
    tmp_path: Path,
) -> None:
    """In ASYNC_FLUSH a message can be consumed, and its offset saved, before the log is synced."""
    root = tmp_path / "store"
    broker = load(root)
    sent = [send(broker, b"%d" % number) for number in range(10)]
    broker.offsets.commit("g", "T", 0, 10)
    broker.offsets.commit("h", "T", 0, 3)
    broker.offsets.file.save()
    abandon(broker)
    lose_from(root, sent[6])

    with capture_logs() as logs:
        broker = load(root)
    assert broker.store.max_offset("T", 0) == 6
    assert send(broker, b"new").queue_offset == 6
    assert (broker.offsets.query("g", "T", 0), broker.offsets.query("h", "T", 0)) == (6, 3)
    assert [(log["group"], log["was"], log["now"]) for log in logs if "was" in log] == [
        ("g", 10, 6)
    ]
    abandon(broker)


def test_a_start_that_fails_after_a_power_failure_leaves_it_to_the_next_to_lower_progress(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    broker = load(root)
    sent = [send(broker, b"%d" % number) for number in range(10)]
    broker.offsets.commit("g", "T", 0, 10)
    broker.offsets.file.save()
    abandon(broker)
    lose_from(root, sent[6])

    unreadable = root / "config/subscriptionGroup.json"
    unreadable.unlink(missing_ok=True)
    unreadable.mkdir()
    with pytest.raises(StoreError, match="check the permissions"):
        load(root)
    unreadable.rmdir()
    broker = load(root)
    assert broker.store.max_offset("T", 0) == 6
    assert broker.offsets.query("g", "T", 0) == 6
    abandon(broker)


def test_progress_whose_messages_are_elsewhere_is_kept_over_a_stop_in_order(tmp_path: Path) -> None:
    """A folder of configuration may go to another broker without the log."""
    root = tmp_path / "store"
    broker = load(root)
    broker.offsets.commit("g", "T", 0, 41)
    broker.offsets.file.save()
    broker.timers.close()
    broker.store.close()
    broker = load(root)
    assert broker.offsets.query("g", "T", 0) == 41
    abandon(broker)


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "subscriptionGroup.json"])
def test_a_config_file_that_the_system_does_not_let_us_read_stops_the_start(
    tmp_path: Path, name: str
) -> None:
    """It may be intact but unreadable: without it every group would start over."""
    (tmp_path / "config" / name).mkdir(parents=True)  # not to be read by root either
    with pytest.raises(StoreError, match=rf"{name}.*check the permissions"):
        load(tmp_path)
