"""A store on a disk that loses power when told to, for short scenarios."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from crash.ledger import read_all
from crash.sim_disk import PowerLoss, SimDisk
from crash.simulator import SimClock
from waiting import finish

from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.results import PutResult
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files.record import Message, StoredMessage, decode_records

ROOT = "/store"
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 8192,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_hash_slot_num": 10,
    "max_index_num": 200,
    "flush_disk_type": "ASYNC_FLUSH",
    "disk_guard_enable": False,
    "delete_when": "",
}

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem


class _Chosen(random.Random):
    """Decides for `lose_power`: nothing that was under way is kept, or all of it."""

    def __init__(self, keep: bool) -> None:
        super().__init__(0)
        self._keep = keep

    def randint(self, a: int, b: int) -> int:
        return b if self._keep else a

    def choice(self, seq: SupportsLenAndGetItem[Any]) -> Any:
        return seq[len(seq) - 1] if self._keep else seq[0]

    def random(self) -> float:
        return 0.5


class Lab:
    def __init__(self) -> None:
        self.disk = SimDisk()
        self.clock = SimClock()

    def open(self, **changes: Any) -> MessageStore:
        settings = StoreSettings(store_path_root_dir=ROOT, **(SMALL | changes))
        store = MessageStore(settings, clock=self.clock, disk=self.disk)
        store.load()
        return store

    def image(self, *, keep: bool = False) -> SimDisk:
        """What a power cut would leave now; the disk itself stays in use."""
        return self.disk.lose_power(_Chosen(keep))

    def cut_power(self, *, keep: bool = False) -> None:
        self.disk = self.image(keep=keep)

    def kill(self) -> None:
        """SIGKILL: the page cache lives on."""
        self.disk.stop_process()

    def write_back(self, part: str, start: int = 0, end: int | None = None) -> None:
        """The kernel has written some dirty pages of files on its own."""
        for path, inode in self.disk.names.items():
            if part in path:
                inode.durable[start:end] = inode.current[start:end]

    def each_cut(self, work: Any, *, most: int = 60) -> Any:
        """Run `work()` on one image after the other, with the power failing at every operation
        in turn, and yield the lab after each cut."""
        origin = self.disk
        for operations in range(most):
            lab = Lab()
            lab.clock = self.clock
            lab.disk = origin.lose_power(_Chosen(True))
            lab.disk.power_left = operations
            done = False
            try:
                work(lab)
                done = True
            except PowerLoss:
                pass
            lab.disk.power_left = None
            lab.cut_power()
            yield lab
            if done:
                return
        raise AssertionError(f"the work takes more than {most} operations")


def message(body: bytes = b"hello", topic: str = "T", key: str = "", tag: str = "") -> Message:
    text = (f"KEYS\x01{key}\x02" if key else "") + (f"TAGS\x01{tag}\x02" if tag else "")
    return Message(topic, 0, body, text)


def put(store: MessageStore, *bodies: bytes, topic: str = "T") -> list[PutResult]:
    results = store.put([message(body, topic, key=body[:8].decode("latin-1")) for body in bodies])
    assert all(result.ok for result in results), results
    return results


def numbered(first: int, end: int, size: int = 60) -> list[bytes]:
    return [(b"%08d" % number).ljust(size, b".") for number in range(first, end)]


def settle(store: MessageStore) -> None:
    """Log on disk, everything dispatched."""
    store.flush.step()
    dispatch(store)


def dispatch(store: MessageStore) -> None:
    while store.reput.step():
        pass


def checkpoint(store: MessageStore) -> None:
    store.queue_flush.step(thorough=True)


def bodies(store: MessageStore, topic: str = "T") -> list[bytes]:
    """Every message of the queue; AssertionError when one is missing or out of place."""
    return [bytes(each.body) for each in read_all(store, topic, 0)]


def found(store: MessageStore, key: str, topic: str = "T") -> list[StoredMessage]:
    result = finish(store.search(topic, key, 32, 0, 2**62))
    return [each for view in result.views for each in decode_records(view)]
