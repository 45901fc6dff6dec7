"""Two or three replicas, a person who operates them as docs/replication.md says, and faults.

Every choice is made by one seed. Machines lose power (SYNC_FLUSH) or processes are killed (either
mode) between any two calls to their disks; links break; the person promotes and restarts. Now and
then all is mended, and after a while of quiet the checker looks: what was acknowledged is there, at
its place; replicas are byte-equal; queues are gapless; an epoch had one master.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from crash.ledger import Broken, read_all
from crash.sim_disk import PowerLoss
from crash.simulator import SimClock

from aerobee.broker.store.results import PutStatus
from ha.simulation.pipe import Pipe
from ha.simulation.replica import TOPICS, Replica

QUIET_STEPS = 2500


@dataclass
class Report:
    runs: int = 0
    acked: int = 0
    promotions: int = 0
    cuts: int = 0
    crashes: int = 0
    emptied: int = 0

    def add(self, other: Report) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True)
class Acked:
    physical_offset: int
    queue_offset: int
    topic: str
    queue_id: int


@dataclass
class World:
    rng: random.Random
    report: Report = field(default_factory=Report)
    acked: dict[str, Acked] = field(default_factory=dict)
    masters: dict[int, int] = field(default_factory=dict)  # of each epoch
    apart: dict[int, int] = field(default_factory=dict)  # slaves: steps without a new link
    recopied: dict[int, int] = field(default_factory=dict)  # emptied slaves: up to where they must

    def __post_init__(self) -> None:
        rng = self.rng
        count = rng.choice((2, 2, 3))
        self.power = rng.random() < 0.6
        flush = "SYNC_FLUSH" if self.power else rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
        self.clock = SimClock()
        size = rng.choice((4096, 8192))
        self.replicas = [Replica(n + 1, flush, size, self.clock) for n in range(count)]
        alike = rng.random() < 0.5
        for replica in self.replicas:
            replica.alike = alike
        self.needed = rng.choice((1, count - 1))
        self.pipes: list[Pipe] = []
        self.master_number = 1
        for replica in self.replicas:
            replica.start(self.needed)
        self._promote(self.replicas[0])

    @property
    def master(self) -> Replica:
        return self.replicas[self.master_number - 1]

    # -- one step

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.ms += self.rng.choice((0, 1, 20))
            self._guarded(self._step, self.rng.random() < 0.03)
        self.heal()
        self.check()

    def _guarded(self, step: object, faulty: bool) -> None:
        """Do it; with a fault, one machine loses power or one process is killed in the middle."""
        victim = self.rng.choice(self.replicas)
        if faulty:
            victim.disk.power_left = self.rng.randrange(25)
        try:
            step()  # type: ignore[operator]
        except PowerLoss:
            self._crash(victim)
        finally:
            victim.disk.power_left = None

    def _crash(self, victim: Replica) -> None:
        self.report.crashes += 1
        power = self.power and self.rng.random() < 0.5
        victim.crash(self.rng if power else None)

    def _step(self) -> None:
        choice = self.rng.random()
        if choice < 0.25:
            self._put()
        elif choice < 0.70:
            self._carry()
        elif choice < 0.88:
            replica = self.rng.choice(self.replicas)
            if replica.is_up:
                replica.work(self.rng)
        elif choice < 0.90 and self.pipes:
            pipe = self.rng.choice(self.pipes)
            pipe.close()
            self.apart[pipe.slave.number] = self.rng.choice((0, 0, 10, 40))
        elif choice < 0.92:
            victim = self.rng.choice(self.replicas)
            if victim.is_up and self.rng.random() < 0.5:
                self._crash(victim)
        else:
            self._operate()

    def _put(self) -> None:
        master = self.master
        if not master.is_master:
            return
        stored = master.put(self.rng)
        if stored is not None:
            key, physical_offset, queue_offset, end, message = stored
            acked = Acked(physical_offset, queue_offset, message.topic, message.queue_id)

            def answered(status: PutStatus) -> None:
                if status is PutStatus.PUT_OK:
                    self.acked[key] = acked

            master.log.when_durable(end, answered)

    def _carry(self) -> None:
        self.pipes = [pipe for pipe in self.pipes if not self._ended(pipe)]
        linked = {pipe.slave.number for pipe in self.pipes}
        for slave in self.replicas:
            self.apart[slave.number] = away = max(0, self.apart.get(slave.number, 0) - 1)
            free = slave.is_up and not slave.is_master and slave.number not in linked and not away
            if free and self.master.is_master and slave.cut_to is None and not slave.refused:
                self.pipes.append(Pipe(self.master, slave))
        for _ in range(self.rng.choice((1, 2, 8, 24))):
            if self.pipes:
                pipe = self.rng.choice(self.pipes)
                if not pipe.is_over:
                    pipe.step(self.rng)
                    self._note_recopied(pipe)

    def _ended(self, pipe: Pipe) -> bool:
        if pipe.is_over and not pipe.is_broken:
            pipe.close()
        return pipe.is_broken

    def _note_recopied(self, pipe: Pipe) -> None:
        slave = pipe.slave
        copies = self.master.copies
        has = copies.by_broker().get(slave.number, 0) if copies is not None else 0
        if self.recopied.get(slave.number, 1 << 60) <= has:
            del self.recopied[slave.number]

    # -- the person

    def _operate(self, planned: float = 0.02) -> None:
        rng = self.rng
        for replica in self.replicas:
            if not replica.is_up and rng.random() < 0.3:
                self._start(replica)
            elif replica.is_up and replica.cut_to is not None:
                self.report.cuts += 1
                replica.stop()
                self._start(replica)
            elif replica.is_up and replica.refused and rng.random() < 0.3:
                self._resolve(replica)
        if self.master.is_up and not self.master.is_master and self.master.cut_to is None:
            self._promote(self.master)
        elif not self.master.is_up and rng.random() < 0.3:
            self._fail_over()
        elif self.master.is_master and rng.random() < planned:
            self.master.stop()
            self._fail_over()

    def _start(self, replica: Replica) -> None:
        replica.start(self.needed)
        if replica.is_master and replica.number != self.master_number:
            replica.roles.demote(max(self.masters))  # a name service tells it
            replica.stop()
            replica.start(self.needed)
        if replica.is_master:
            self._note_master(replica)

    def _fail_over(self) -> None:
        """All others must be there: the one with the longest log has what was acknowledged."""
        others = [replica for replica in self.replicas if replica is not self.master]
        ready = all(replica.is_up and replica.cut_to is None for replica in others)
        if ready and not self.recopied:
            self._promote(max(others, key=lambda replica: replica.place))

    def _promote(self, replica: Replica) -> None:
        if self.masters:
            replica.roles.note_epoch(max(self.masters))
        # If it crashes half-way the outcome is unknown: the decision stands.
        self.master_number = replica.number
        self.report.promotions += 1
        replica.roles.promote("SYNC_MASTER")
        replica.stop()
        self._start(replica)

    def _resolve(self, replica: Replica) -> None:
        """It reports why it cannot follow. The master has all that was acknowledged: empty it."""
        if not self.power and "no epoch of our log" not in replica.refused:
            raise Broken(f"no disk has lost anything, but {replica} says: {replica.refused}")
        if self.master.is_master:
            self.report.emptied += 1
            self.recopied[replica.number] = self.master.log.max_physical_offset
            replica.empty()
            replica.start(self.needed)

    def _note_master(self, replica: Replica) -> None:
        epoch = replica.roles.epoch
        before = self.masters.setdefault(epoch, replica.number)
        if before != replica.number:
            raise Broken(f"{before} and {replica.number} were masters in epoch {epoch}")

    # -- the checker

    def heal(self) -> None:
        """All is up and linked; wait for quiet."""
        for _ in range(QUIET_STEPS):
            self.clock.ms += 1
            self._operate(planned=0.0)
            for replica in self.replicas:
                if replica.is_up:
                    replica.settle()
            if self._is_quiet():
                return
            self._carry()
        raise Broken(f"no quiet: {self.replicas}, {[r.refused for r in self.replicas]}")

    def _is_quiet(self) -> bool:
        following = {pipe.slave.number for pipe in self.pipes if pipe.follows}
        if not self.master.is_master or len(following) < len(self.replicas) - 1:
            return False
        end = self.master.log.max_physical_offset
        return all(replica.log.max_physical_offset == end for replica in self.replicas)

    def check(self) -> None:
        self.report.acked += len(self.acked)
        for replica in self.replicas:
            self._check_messages(replica)
        bytes_of = {replica.number: log_bytes(replica) for replica in self.replicas}
        if len(set(bytes_of.values())) != 1:
            raise Broken(f"the logs differ: {self.replicas}")

    def _check_messages(self, replica: Replica) -> None:
        found: dict[str, Acked] = {}
        for topic in TOPICS:
            for queue_id in range(2):
                for message in read_all(replica.log, topic, queue_id):
                    found[bytes(message.body[:16]).decode()] = Acked(
                        message.physical_offset, message.queue_offset, topic, queue_id
                    )
        for key, acked in self.acked.items():
            if found.get(key) != acked:
                raise Broken(f"{key} was acknowledged at {acked}; {replica} has {found.get(key)}")


def log_bytes(replica: Replica) -> bytes:
    log = replica.log
    return b"".join(
        log.read_log(file.start, min(file.size, log.max_physical_offset - file.start))
        for file in log.commit_log.files.files
    )


def run_seed(seed: int, *, rounds: int = 2, steps: int = 300) -> Report:
    """Broken, with the seed in its text, when a promise is not kept."""
    world = World(random.Random(seed))
    try:
        for _ in range(rounds):
            world.run(steps)
    except (AssertionError, OSError) as error:
        raise Broken(f"seed {seed}: {type(error).__name__}: {error}") from error
    world.report.runs = 1
    return world.report
