"""A link between a master and a slave: bytes that are sliced, delayed and lost with it."""

from __future__ import annotations

import random

from aerobee.broker.ha.epochs import FOREVER, Epochs
from aerobee.broker.ha.follower import Follower, held
from aerobee.broker.ha.receiver import Receiver
from aerobee.broker.ha.rejoin import Cut
from aerobee.broker.ha.serving import Serving
from aerobee.broker.ha.stream import epoch_ack
from aerobee.broker.ha.wire import StreamError, decode_welcome, encode_hello
from ha.simulation.replica import Replica

BATCH = 700


class Pipe:
    def __init__(self, master: Replica, slave: Replica) -> None:
        self.master = master
        self.slave = slave
        self._life = master.store, slave.store
        log = master.log
        self._serving = Serving(
            BATCH,
            log.settings.mapped_file_size_commit_log,
            lambda: (log.min_physical_offset, log.committed_offset),
            lambda: epochs_of(master),
            master.confirmed,
        )
        self._follower = Follower(slave.log, slave.roles.epoch_file, slave.hear_confirmed)
        self._receiver: Receiver | None = None
        self._to_master = encode_hello(slave.number)
        self._to_slave = b""
        self._welcome = b""
        self._first = 0
        self.is_broken = False
        self.slave_is_gone = False  # what it has sent may still come

    @property
    def is_over(self) -> bool:
        """One of them has ended meanwhile, or started again."""
        if self.slave_is_gone:
            return self.is_broken or self._life[0] is not self.master.store or not self._to_master
        return self.is_broken or self._life != (self.master.store, self.slave.store)

    @property
    def follows(self) -> bool:
        return not self.is_over and self._receiver is not None and not self.slave_is_gone

    def close(self) -> None:
        self.is_broken = True
        if self.master.copies is not None:
            self.master.copies.left(self)

    def step(self, rng: random.Random) -> None:
        """One of the things that can happen next."""
        try:
            if rng.random() < 0.5 or self.slave_is_gone:
                self._at_master(rng)
            else:
                self._at_slave(rng)
        except StreamError as error:
            self.slave.refused = str(error)
            self.close()

    def _at_master(self, rng: random.Random) -> None:
        # A hello comes in one piece: a split one is misread by RocketMQ too.
        whole = self._serving.broker_id is None or rng.random() < 0.5
        size = len(self._to_master) if whole else rng.randint(0, len(self._to_master))
        data, self._to_master = self._to_master[:size], self._to_master[size:]
        serving, log = self._serving, self.master.log
        if data:
            answer, has_reported = serving.feed(data)
            self._to_slave += answer
            if has_reported:
                assert self.master.copies is not None
                self.master.copies.acked(self, self.slave.number, serving.sender.acked)
        if serving.broker_id is None or not serving.sender.is_open:
            return
        if (frame := serving.next_frame(log.committed_offset)) is not None:
            offset, size = frame
            serving.sender.claim(size)
            self._to_slave += serving.head(offset, size) + log.read_log(offset, size)
        elif rng.random() < 0.1:
            self._to_slave += serving.head(serving.sender.position, 0)

    def _at_slave(self, rng: random.Random) -> None:
        size = rng.randint(0, len(self._to_slave))
        data, self._to_slave = self._to_slave[:size], self._to_slave[size:]
        if self._receiver is None:
            self._join(data)
            return
        for offset, lot in self._receiver.feed(memoryview(data)):
            self.slave.log.append_copy(offset, lot)
        self._ack()

    def _join(self, data: bytes) -> None:
        self._welcome += data
        answer = decode_welcome(self._welcome)
        if answer is None:
            return
        if not self._follower.is_settled:
            return
        welcome, rest = answer
        start = self.master.log.min_physical_offset
        plan = self._follower.plan(welcome, start)
        if isinstance(plan, Cut):
            compare(self.master, self.slave, plan.end)
            self.slave.cut_to = plan.end
            self.close()
            return
        compare(self.master, self.slave)
        self._receiver = self._follower.begin(plan)
        self._to_slave = rest + self._to_slave
        self._first = self._receiver.received
        self._to_master += epoch_ack(self._first)

    def _ack(self) -> None:
        assert self._receiver is not None
        self._to_master += epoch_ack(held(self.slave.log, self._receiver, self._first))


def epochs_of(master: Replica) -> Epochs:
    """As `MasterLinks.epochs`."""
    file = master.roles.epoch_file
    if not file.epochs:
        file.save(file.epochs.begun(1, master.log.min_physical_offset))
    return file.epochs


def compare(master: Replica, slave: Replica, before: int = FOREVER) -> None:
    """As `SlaveLink` does by requests."""
    tail = slave.log.log_tail(before)
    if tail.end > before:
        raise StreamError(f"the master has a record's end at {before}, where we have none")
    if tail.blank_at is not None and has_record(master, tail.blank_at):
        raise StreamError(f"our file ends at {tail.blank_at}, the master's goes on")
    record = tail.record
    if record is not None and slave.log.read_log(*record) != master.log.read_log(*record):
        raise StreamError(f"our message at {record[0]} is not the master's")


def has_record(master: Replica, offset: int) -> bool:
    """As VIEW_MESSAGE_BY_ID finds one."""
    return master.log.record_at(offset) is not None
