"""A store folder, or one of its parts, that is a disk of its own: with mkfs's lost+found in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.verify import verify

from .conftest import OpenStore, abandon, dispatch, message, read_all


@pytest.fixture
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root: lost+found is not readable."""
    for module, name in ((os, "listdir"), (RealDisk, "syncdir")):
        real = getattr(module, name)

        def closed(*words: Any, real: Any = real) -> Any:
            if str(words[-1]).endswith("lost+found"):
                raise PermissionError(13, "Permission denied", words[-1])
            return real(*words)

        monkeypatch.setattr(module, name, closed)


@pytest.mark.parametrize("part", [".", "consumequeue", "consumequeue_ext", "commitlog", "index"])
def test_a_mount_point_is_as_good_as_any_folder(
    open_store: OpenStore, tmp_path: Path, as_a_user: None, part: str
) -> None:
    (tmp_path / "store" / part / "lost+found").mkdir(parents=True)
    store = open_store()
    store.put([message(body=b"1")])
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    abandon(store)
    store = open_store()
    assert [m.body for m in read_all(store)] == [b"1"]
    store.queue_flush.step(thorough=True)
    store.close()
    store = open_store()
    assert list(store.queues()) == ["T"]
    store.close()
    assert verify(open_directory(str(tmp_path / "store")), lambda _: None).problems == []
