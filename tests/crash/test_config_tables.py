"""Config tables on a disk that loses power: what was answered as saved is there after every cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from crash.config_tables import Broken, run_seed

from aerobee.broker.services.config_files import journal_file, json_file, table_file
from aerobee.protocol.files import config_journal

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def small_journal(monkeypatch: Patch) -> None:
    monkeypatch.setattr(journal_file, "SIZE_MIN", 4096)


@pytest.mark.parametrize("start", range(0, 12, 4))
def test_no_saved_change_is_lost_by_a_cut_at_any_operation(start: int) -> None:
    assert sum(run_seed(seed) for seed in range(start, start + 4)) > 100


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_saved_change_is_lost_in_many_lives() -> None:
    assert sum(run_seed(seed) for seed in range(100, 300)) > 10_000


def without_chain(patch: Patch) -> None:
    """Checksums are not chained: stale lines of an earlier use are accepted."""
    patch.setattr(config_journal, "crc32", lambda data, chain=0: crc32(data))
    patch.setattr(journal_file, "END", b"")  # the end mark would separate them, too


def replay_beside_any_file(patch: Patch) -> None:
    patch.setattr(config_journal, "base_of", lambda json: config_journal.Base(0, 0))
    patch.setattr(table_file, "base_of", lambda json: config_journal.Base(0, 0))


def answer_before_the_sync(patch: Patch) -> None:
    def append(self: Any, texts: list[bytes]) -> bool:
        file = self._file
        if file is not None:
            patch.setattr(file, "sync", lambda: None, raising=False)
        return real(self, texts)

    real = journal_file.JournalFile.append
    patch.setattr(journal_file.JournalFile, "append", append)


def leave_the_new_name_unsynced(patch: Patch) -> None:
    def put_in_place(path: str, disk: Any) -> None:
        disk.rename(path + ".tmp", path)

    patch.setattr(table_file, "put_in_place", put_in_place)


def go_on_in_a_journal_that_failed(patch: Patch) -> None:
    def append(self: Any, texts: list[bytes]) -> bool:
        try:
            return real(self, texts)
        except OSError:
            self.is_open = True
            raise

    real = journal_file.JournalFile.append
    patch.setattr(journal_file.JournalFile, "append", append)


def take_the_page_cache_for_the_disk(patch: Patch) -> None:
    """After a kill the start does not rewrite what it found."""

    def load(path: str, disk: Any) -> tuple[Any, bool]:
        content, data = json_file.read_json(path, disk)
        journal = path + config_journal.SUFFIX
        if not disk.exists(journal):
            return content, False
        whole = content or {}
        read = config_journal.read_journal(disk.read_small(journal))
        return whole, bool(config_journal.with_journal(data, whole, read))

    patch.setattr(table_file, "load_with_journal", load)


BUGS: list[Callable[[Patch], None]] = [
    without_chain,
    replay_beside_any_file,
    answer_before_the_sync,
    leave_the_new_name_unsynced,
    go_on_in_a_journal_that_failed,
    take_the_page_cache_for_the_disk,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        with pytest.raises(Broken) as caught:
            for seed in (268, *range(60)):
                run_seed(seed)
    print(caught.value)
