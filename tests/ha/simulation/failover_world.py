"""Two or three replicas with an unkind arbiter, and faults; nobody operates them.

Every choice is made by one seed. Machines lose power or processes are killed between any two calls
to their disks; links break; the arbiter loses answers, does things late and lets leases expire
under live masters. Consumers read from any replica. Then all is mended, and after a while of quiet
the checker looks: what was acknowledged, and what a consumer saw, is there, at its place, on all;
logs are byte-equal; an epoch had one master.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from crash.ledger import Broken, read_all
from crash.sim_disk import PowerLoss
from crash.simulator import SimClock

from aerobee.broker.store.results import PutStatus
from ha.simulation.failover_node import Node
from ha.simulation.pipe import Pipe
from ha.simulation.replica import TOPICS
from ha.simulation.sim_arbiter import SimArbiter
from ha.simulation.world import Acked, Report, log_bytes

QUIET_STEPS = 3000


@dataclass
class FailoverWorld:
    rng: random.Random
    report: Report = field(default_factory=Report)
    acked: dict[str, Acked] = field(default_factory=dict)
    seen: dict[str, Acked] = field(default_factory=dict)
    masters: dict[int, int] = field(default_factory=dict)  # of each epoch
    pipes: list[Pipe] = field(default_factory=list)
    apart: dict[int, int] = field(default_factory=dict)  # steps without a new link

    def __post_init__(self) -> None:
        rng = self.rng
        self.is_over = False
        self.clock = SimClock()
        self.arbiter = SimArbiter(rng, self.clock)
        self.flush = rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
        size, alike = rng.choice((4096, 8192)), rng.random() < 0.5
        self.nodes = [
            Node(number, self.flush, size, self.clock, self.arbiter)
            for number in range(1, rng.choice((2, 3, 3)) + 1)
        ]
        for node in self.nodes:
            node.alike = alike
            node.start()

    # -- one step

    def run(self, steps: int) -> None:
        self.arbiter.is_kind = False
        for _ in range(steps):
            self.clock.ms += self.rng.choice((0, 10, 50, 150))
            self.arbiter.step()
            self._guarded()
        self.heal()
        if not self.is_over:
            self.check()

    def _guarded(self) -> None:
        """A step; now and then a machine loses power or a process is killed in the middle."""
        victim = self.rng.choice(self.nodes)
        if self.rng.random() < 0.03:
            victim.disk.power_left = self.rng.randrange(25)
        try:
            self._step()
        except PowerLoss:
            self._crash(victim)
        finally:
            victim.disk.power_left = None

    def _crash(self, victim: Node) -> None:
        self.report.crashes += 1
        self._let_go(victim)
        victim.crash(self.rng if self._may_lose_power(victim) else None)

    def _may_lose_power(self, victim: Node) -> bool:
        """With ASYNC_FLUSH one member of the in-sync set must keep its page cache."""
        if self.rng.random() < 0.5:
            return False
        record = self.arbiter.record
        if self.flush == "SYNC_FLUSH":
            return True
        others = [node for node in self.nodes if node is not victim]
        sound = all(node.is_up and node.electability.is_electable for node in others)
        return sound and record is not None and bool(record.in_sync - {victim.number})

    def _step(self) -> None:
        rng = self.rng
        choice = rng.random()
        node = rng.choice(self.nodes)
        if choice < 0.20:
            self._put(node)
        elif choice < 0.50:
            self._carry()
        elif choice < 0.75:
            self._look(node)
        elif choice < 0.88:
            if node.is_up:
                node.work(rng)
        elif choice < 0.91:
            self._consume(node)
        elif choice < 0.93 and self.pipes:
            pipe = rng.choice(self.pipes)
            pipe.close()
            self.apart[pipe.slave.number] = rng.choice((0, 0, 10, 40))
        elif choice < 0.95:
            node.handle.is_cut_off = not node.handle.is_cut_off and rng.random() < 0.5
        elif choice < 0.96:
            self.arbiter.expire(node.number)
        elif choice < 0.97:
            if node.is_up:
                self._crash(node)
        else:
            self._operate(node)

    def _look(self, node: Node) -> None:
        if node.is_up:
            before, followed = node.leads, node.followed
            node.look(self.rng)
            if node.followed != followed or node.leads != before:
                self._let_go(node)
            if node.leads and node.leads != before:
                self._note_master(node)

    def _let_go(self, node: Node) -> None:
        """It follows no master, or another one. Its acks may still be in flight."""
        for pipe in self.pipes:
            if pipe.slave is node:
                pipe.slave_is_gone = True

    def _note_master(self, node: Node) -> None:
        self.report.promotions += 1
        before = self.masters.setdefault(node.leads, node.number)
        if before != node.number:
            raise Broken(f"{before} and {node.number} were masters in epoch {node.leads}")

    def _put(self, node: Node) -> None:
        if not node.leads:
            return
        stored = node.put(self.rng)
        if stored is None:
            return
        key, physical_offset, queue_offset, end, message = stored
        acked = Acked(physical_offset, queue_offset, message.topic, message.queue_id)

        def answered(status: PutStatus) -> None:
            if status is PutStatus.PUT_OK:
                self.acked[key] = acked

        node.log.when_durable(end, answered)

    def _consume(self, node: Node) -> None:
        if node.is_up and node.is_settled:
            self.seen |= messages_of(node)

    def _carry(self) -> None:
        kept = []
        for pipe in self.pipes:
            if pipe.is_over:
                pipe.close()
            else:
                kept.append(pipe)
        self.pipes = kept
        linked = {pipe.slave.number for pipe in kept if not pipe.slave_is_gone}
        for node in self.nodes:
            self.apart[node.number] = away = max(0, self.apart.get(node.number, 0) - 1)
            if node.is_up and node.followed and node.number not in linked and not away:
                master = self.nodes[node.followed - 1]
                if master.leads and node.cut_to is None and not node.refused:
                    node._first_confirmed = -1
                    self.pipes.append(Pipe(master, node))
        for _ in range(self.rng.choice((1, 2, 8, 24))):
            if self.pipes:
                pipe = self.rng.choice(self.pipes)
                if not pipe.is_over:
                    pipe.step(self.rng)

    def _operate(self, node: Node) -> None:
        """What an init system does, and the replica itself."""
        if not node.is_up:
            if self.rng.random() < 0.5:
                node.start()
        elif node.cut_to is not None:
            self.report.cuts += 1
            self._let_go(node)
            node.restart()
        elif node.refused and self.rng.random() < 0.3:
            node.refused = ""  # it retries

    # -- the checker

    def heal(self) -> None:
        """All is up, linked and kind; wait for quiet."""
        self.arbiter.is_kind = True
        tries = 0
        for _ in range(QUIET_STEPS):
            self.clock.ms += 50
            self.arbiter.step()
            for node in self.nodes:
                node.handle.is_cut_off = False
                self._operate(node)
                self._look(node)
                if node.is_up:
                    node.settle()
                if node.refused:
                    tries += 1
                    if tries % 100 == 0:
                        self._resolve(node)
            if self._is_quiet():
                return
            self._carry()
        if self._waits_for_a_person():
            return
        record = self.arbiter.record
        steps = [getattr(node, "failover", None) and node.failover.step for node in self.nodes]
        raise Broken(f"no quiet: {self.nodes}, {record}, {steps}")

    def _waits_for_a_person(self) -> bool:
        """The only ones in sync have lost power with messages that were not on disk: the set was
        about to become theirs alone."""
        record = self.arbiter.record
        assert record is not None
        members = [self.nodes[number - 1] for number in record.in_sync]
        self.is_over = self.flush == "ASYNC_FLUSH" and not any(
            node.electability.is_electable for node in members
        )
        return self.is_over

    def _resolve(self, node: Node) -> None:
        """It reports why it cannot follow: empty it, as an operator would."""
        if "lost the end" in node.refused:
            raise Broken(f"a master without all was elected: {node} says {node.refused}")
        self.report.emptied += 1
        self._let_go(node)
        node.empty()
        node.start()

    def _is_quiet(self) -> bool:
        record = self.arbiter.record
        if record is None or len(record.in_sync) < len(self.nodes):
            return False
        master = self.nodes[record.master - 1]
        if master.leads != record.epoch or not all(node.is_up for node in self.nodes):
            return False
        following = {pipe.slave.number for pipe in self.pipes if pipe.follows}
        if len(following) < len(self.nodes) - 1 or not all(node.is_settled for node in self.nodes):
            return False
        end = master.log.max_physical_offset
        return all(
            node.log.max_physical_offset == end == node.log.dispatched_offset for node in self.nodes
        )

    def check(self) -> None:
        self.report.acked += len(self.acked)
        for node in self.nodes:
            found = messages_of(node)
            for what, wanted in (("acknowledged", self.acked), ("seen", self.seen)):
                for key, place in wanted.items():
                    if found.get(key) != place:
                        raise Broken(f"{key} was {what} at {place}; {node} has {found.get(key)}")
        if len({log_bytes(node) for node in self.nodes}) != 1:
            raise Broken(f"the logs differ: {self.nodes}")


def messages_of(node: Node) -> dict[str, Acked]:
    found: dict[str, Acked] = {}
    for topic in TOPICS:
        for queue_id in range(2):
            for message in read_all(node.log, topic, queue_id):
                found[bytes(message.body[:16]).decode()] = Acked(
                    message.physical_offset, message.queue_offset, topic, queue_id
                )
    return found


def run_failover_seed(seed: int, *, rounds: int = 2, steps: int = 500) -> Report:
    """Broken, with the seed in its text, when a promise is not kept."""
    world = FailoverWorld(random.Random(seed))
    try:
        for _ in range(rounds):
            if not world.is_over:
                world.run(steps)
    except (AssertionError, OSError) as error:
        raise Broken(f"failover seed {seed}: {type(error).__name__}: {error}") from error
    world.report.runs = 1
    return world.report
