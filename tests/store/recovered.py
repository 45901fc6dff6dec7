"""Stores that were filled, and files of them that were damaged."""

from __future__ import annotations

from pathlib import Path

from aerobee.broker.store.message_store import MessageStore

from .conftest import OpenStore, abandon, dispatch, message, read_all


def fill(store: MessageStore, count: int, start: int = 0, body: int = 200) -> None:
    for n in range(start, start + count):
        text = f"UNIQ_KEY\x01u{n}\x02TAGS\x01t\x02"
        store.put([message(queue_id=n % 2, body=b"%06d" % n + b"." * body, properties=text)])


def numbers(store: MessageStore) -> list[int]:
    """The message numbers of both queues, after checking that each queue is gapless."""
    found: list[int] = []
    for queue_id in (0, 1):
        messages = read_all(store, "T", queue_id)
        assert [m.queue_offset for m in messages] == list(range(len(messages)))
        found += [int(m.body[:6]) for m in messages]
    return sorted(found)


def log_path(folder: Path, number: int = 0) -> Path:
    return folder / "store" / "commitlog" / f"{number * 65536:020d}"


def crashed_image(open_store: OpenStore, tmp_path: Path, count: int) -> tuple[Path, list[int]]:
    """A store killed with `count` messages; its folder and where each record begins."""
    store = open_store(root=tmp_path / "image")
    fill(store, count // 2)
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    fill(store, count - count // 2, count // 2)
    dispatch(store)
    starts = []
    for queue_id in (0, 1):
        starts += [m.physical_offset for m in read_all(store, "T", queue_id)]
    starts.append(store.max_physical_offset)
    abandon(store)
    return tmp_path / "image", sorted(starts)


def damage(tmp_path: Path, number: int, at: int = -88, data: bytes = bytes(8)) -> None:
    """Overwrite bytes of one message, counted from its body."""
    body = log_path(tmp_path).read_bytes().index(b"%06d" % number)
    with log_path(tmp_path).open("r+b") as file:
        file.seek(body + at)
        file.write(data)
