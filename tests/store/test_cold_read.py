"""Records that are read with pread: those near each other by one call, always the same bytes."""

import errno
import random
from collections.abc import Callable

import pytest

from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.reading import cold_read
from aerobee.broker.store.reading.cold_read import read_cold
from aerobee.broker.store.results import Span

from .conftest import OpenStore, dispatch, message
from .faulty_disk import Fault, FaultyDisk

LogFiles = list[MappedFile]


@pytest.fixture
def files(open_store: OpenStore) -> LogFiles:
    store = open_store()
    store.put([message(queue_id=n % 4, body=b"%d" % n * 100) for n in range(600)])
    dispatch(store)
    return list(store.commit_log.files.files)


def one_by_one(spans: list[Span]) -> bytes:
    return b"".join(file.file.read(position, length) for file, position, length in spans)


@pytest.mark.parametrize("seed", range(20))
def test_any_spans_give_their_bytes_in_their_order(
    files: LogFiles, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(cold_read, "GAP_MAX", chance.choice((0, 50, 500)))
    monkeypatch.setattr(cold_read, "TOGETHER_MAX", chance.choice((100, 1000, 20_000)))
    spans: list[Span] = []
    for _ in range(chance.randrange(30)):
        file, position = chance.choice(files), chance.randrange(60_000)
        for _ in range(chance.randrange(8)):  # some that follow each other
            length = chance.randrange(1, 900)
            spans.append((file, position, length))
            position += length + chance.choice((0, 40, 300, 3000, -200))
            position = max(position, 0)
    spans = [span for span in spans if span[1] + span[2] <= span[0].size]
    assert read_cold(spans) == one_by_one(spans)


def test_records_between_those_of_other_queues_are_read_by_one_call(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real: Callable[..., bytes] = type(files[0].file).read

    def counted(self: object, position: int, length: int) -> bytes:
        calls.append(length)
        return real(self, position, length)

    monkeypatch.setattr(type(files[0].file), "read", counted)
    spans: list[Span] = [(files[0], 400 * number, 100) for number in range(100)]
    assert len(read_cold(spans)) == 100 * 100
    assert calls == [99 * 400 + 100]


def test_a_bad_sector_between_records_fails_none_of_them(
    open_store: OpenStore,
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    store.put([message(body=b"%d" % n * 100) for n in range(50)])
    file = store.commit_log.files.files[0]
    spans: list[Span] = [(file, 0, 300), (file, 900, 300), (file, 1800, 300)]
    expected = one_by_one(spans)
    disk.faults = [Fault("read", "/commitlog/", errno.EIO, times=1)]
    assert read_cold(spans) == expected
    assert disk.faults[0].raised == 1
