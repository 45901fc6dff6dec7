"""One replica on a simulated disk: the real store, role and epochs, without a loop or a socket."""

from __future__ import annotations

import random
from collections.abc import Callable

from crash.sim_disk import SimDisk
from crash.simulator import SimClock

from aerobee.broker.daemon.roles import Roles
from aerobee.broker.daemon.store_settings import store_settings
from aerobee.broker.ha import cut
from aerobee.broker.ha.copies import Copies
from aerobee.broker.ha.in_sync import InSync
from aerobee.broker.settings import Settings
from aerobee.broker.store.files.disk import make_folder
from aerobee.broker.store.message_store import MessageStore
from aerobee.protocol.files.record import Message

ROOT = "/store"
TOPICS = ("Orders", "Payments")
FOREVER_MS = 1 << 40


class Replica:
    def __init__(self, number: int, flush: str, file_size: int, clock: SimClock) -> None:
        self.number = number
        self.clock = clock
        self.disk = SimDisk()
        self._flush = flush
        self._file_size = file_size
        self.store: MessageStore | None = None  # None: it is down
        self.copies: Copies | InSync | None = None  # of a master
        self.confirmed: Callable[[], int] | None = None  # of a master that an arbiter has chosen
        self.cut_to: int | None = None  # asked for with the next start
        self.refused = ""  # why it does not follow
        self.alike = False  # all records have the same length: those of two masters fit together
        self.empty()

    def __repr__(self) -> str:
        if self.store is None:
            return f"<{self.number} down>"
        kind = "master" if self.is_master else "slave"
        return f"<{self.number} {kind} {self.roles.epochs!r} end {self.store.max_physical_offset}>"

    def hear_confirmed(self, end: int) -> None:
        """A slave: what its master has confirmed."""

    def empty(self) -> None:
        """Begin with an empty folder."""
        self.disk = SimDisk()
        make_folder(self.disk, f"{ROOT}/config")
        self.disk.syncdir("/")
        self.disk.syncdir(ROOT)
        self.store = self.copies = None
        self.cut_to, self.refused = None, ""

    def _settings(self) -> Settings:
        return Settings(
            broker_role="SLAVE",
            broker_id=self.number,
            store_path_root_dir=ROOT,
            store_path_commit_log=f"{ROOT}/commitlog",
            flush_disk_type=self._flush,
            mapped_file_size_commit_log=self._file_size,
            mapped_file_size_consume_queue=20 * 32,
            max_hash_slot_num=50,
            max_index_num=100,
            disk_guard_enable=False,
        )

    @property
    def is_up(self) -> bool:
        return self.store is not None

    @property
    def is_master(self) -> bool:
        return self.store is not None and not self.settings.is_slave

    @property
    def log(self) -> MessageStore:
        assert self.store is not None, f"{self} is asked for its log"
        return self.store

    @property
    def place(self) -> tuple[int, int]:
        """How far it has come: the one with the greatest has all that was acknowledged."""
        return self.roles.epoch, self.log.max_physical_offset

    # -- its life; PowerLoss ends it anywhere

    def start(self, needed: int) -> None:
        """As the daemon does; `needed` copies beside its own acknowledge a put."""
        self.settings = self._settings()
        self.roles = Roles(self.settings, self.disk)
        self.roles.choose()
        wanted = store_settings(self.settings)
        if self.cut_to is not None:
            cut.take_back_progress(
                wanted,
                self.settings,
                self.clock,
                self.disk,
                self.cut_to,
            )
        store = MessageStore(wanted, clock=self.clock, disk=self.disk)
        store.load(cut_to=self.cut_to)
        self.roles.opened(store, self.cut_to)
        self.store, self.cut_to, self.refused = store, None, ""
        if self.is_master:
            end = lambda: store.max_physical_offset  # noqa: E731
            self.copies = Copies(
                self.clock, end, needed=needed, behind_max=1 << 60, timeout_ms=FOREVER_MS
            )
            store.wait_for_copies(self.copies.when_copied)

    def stop(self) -> None:
        self.log.close()
        self.store = self.copies = None

    def crash(self, rng: random.Random | None) -> None:
        """The power goes, or, without `rng`, a kill: then the page cache lives on."""
        self.store = self.copies = None
        self.disk = self.disk.lose_power(rng) if rng is not None else self.disk.stop_process()

    # -- what goes on in it

    def put(self, rng: random.Random) -> tuple[str, int, int, int, Message] | None:
        """(key, physical offset, queue offset, end, message) of what was stored."""
        key = f"{rng.getrandbits(64):016x}"
        body = key.encode() + bytes(30 if self.alike else rng.choice((0, 30, 300, 900)))
        topic = TOPICS[0] if self.alike else rng.choice(TOPICS)
        message = Message(topic, rng.randrange(2), body, f"KEYS\x01{key}\x02")
        (result,) = self.log.put([message])
        if not result.ok:
            return None
        return key, result.physical_offset, result.queue_offset, result.end_offset, message

    def work(self, rng: random.Random) -> None:
        store = self.log
        step = rng.randrange(8)
        if step < 4:
            store.flush.step()
        elif step < 6:
            store.reput.step()
        elif step == 6:
            store.queue_flush.step(thorough=False)
        else:
            store.queue_flush.step(thorough=True)

    def settle(self) -> None:
        """Dispatch and flush all that can be."""
        while self.log.reput.step():
            pass
        self.log.flush.step()
        while self.log.reput.step():
            pass
