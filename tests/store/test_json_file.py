"""config/*.json: replaced whole, with the one before kept."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from aerobee.broker.services.config_files.json_file import load_json, save_json
from aerobee.broker.store.files.real_disk import RealDisk


def test_what_is_saved_is_loaded_with_its_integer_keys(tmp_path: Path) -> None:
    path = str(tmp_path / "config" / "consumerOffset.json")
    value = {"offsetTable": {"T@g": {0: 12, 1: 9}}}
    save_json(path, value)
    assert load_json(path) == value
    assert "0:12" in Path(path).read_text().replace(" ", "")
    assert not Path(path + ".tmp").exists()


def test_quoted_keys_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "delayOffset.json"
    path.write_text('{"offsetTable":{"3":233051}}')
    assert load_json(str(path)) is not None


def test_the_file_before_is_kept_as_bak(tmp_path: Path) -> None:
    path = str(tmp_path / "topics.json")
    for n in range(3):
        save_json(path, {"n": n, "padding": "x" * (30 - 10 * n)})  # each shorter than the last
    assert load_json(path) == {"n": 2, "padding": "x" * 10}
    assert load_json(path + ".bak") == {"n": 1, "padding": "x" * 20}


@pytest.mark.parametrize("damage", [b"", b"{", b'{"n":1', b"\xff\xfe", b"null", b"[1]", bytes(50)])
def test_an_unreadable_file_falls_back_to_bak(
    tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "topics.json"
    save_json(str(path), {"n": 1})
    save_json(str(path), {"n": 2})
    path.write_bytes(damage)
    assert load_json(str(path)) == {"n": 1}
    assert ".bak" in capsys.readouterr().out
    save_json(str(path), {"n": 3})  # must not push the damaged file over the good one
    assert load_json(str(path)) == {"n": 3}
    assert load_json(str(path) + ".bak") == {"n": 1}


def test_a_missing_file_is_none_and_an_unreadable_pair_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "topics.json"
    assert load_json(str(path)) is None
    assert capsys.readouterr().out == ""
    path.write_bytes(b"{")
    assert load_json(str(path)) is None
    assert "cannot be read" in capsys.readouterr().out


def test_every_moment_of_a_save_leaves_a_whole_file(tmp_path: Path) -> None:
    """Stop the save after each of its disk operations: old or new is there, never neither."""

    class Stop(Exception):
        pass

    class StoppingDisk(RealDisk):
        left = 0

        def _step(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise Stop

        def write_small(self, path: str, data: bytes, mode: int = 0o644) -> None:
            self._step()
            super().write_small(path, data, mode)

        def rename(self, old: str, new: str) -> None:
            self._step()
            super().rename(old, new)

        def syncdir(self, path: str) -> None:
            self._step()
            super().syncdir(path)

    for steps in range(6):
        path = str(tmp_path / str(steps) / "a.json")
        save_json(path, {"n": "old"})
        disk = StoppingDisk()
        disk.left = steps
        with contextlib.suppress(Stop):
            save_json(path, {"n": "new"}, disk=disk)
        found = load_json(path)
        assert found is not None and found["n"] in ("old", "new")
