"""Faults on the machines: each one is injected, lasts, and is undone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from peers.wire import Wire

from ha.chaos.machines import Machine, Member
from ha.chaos.network import OUTSIDE, Network
from ha.failover_cluster import FailoverProducer, Replicas

PAUSE_S = 0.05  # between two messages: a long run must fit on the disks


class PacedProducer(FailoverProducer):
    pause_s = PAUSE_S

    def __init__(self, cluster: Replicas) -> None:
        super().__init__(cluster)
        self.story: list[str] = []  # of a round: what it met, and when

    def tell(self, what: str) -> None:
        self.story.append(f"{datetime.now():%H:%M:%S.%f} {what}")

    def send(self, wire: Wire) -> None:
        before = dict(self.codes)
        try:
            super().send(wire)
        except OSError as error:
            self.tell(f"{wire.socket.getpeername()[0]}: {error!r}")
            raise
        code = next(code for code, count in self.codes.items() if count > before.get(code, 0))
        if code != 0 or not self.story[-1:] or "acknowledged" not in self.story[-1]:
            told = "acknowledged" if code == 0 else f"refused with {code}"
            self.tell(f"{wire.socket.getpeername()[0]}: {told}")
        time.sleep(self.pause_s)


@dataclass
class Scene:
    network: Network
    machines: dict[int, Machine]
    members: dict[int, Member]
    producer: PacedProducer
    master: int | None
    random: random.Random

    def any(self) -> int:
        return self.random.choice(list(self.machines))

    def victim(self) -> int:
        """The master more often than not: its faults matter most."""
        if self.master is not None and self.random.random() < 0.6:
            return self.master
        return self.any()

    def slave(self) -> int:
        return self.random.choice([n for n in self.machines if n != self.master])

    def last(self, least: float, most: float) -> None:
        time.sleep(self.random.uniform(least, most))


def killed(scene: Scene) -> str:
    number = scene.victim()
    scene.machines[number].kill()
    scene.last(0, 5)
    scene.machines[number].start()
    return f"broker {number} killed"


def killed_in_turn(scene: Scene) -> str:
    """The second is killed soon after the first restarts, which may not be in sync yet."""
    first, second = scene.random.sample(list(scene.machines), 2)
    for number in (first, second):
        scene.machines[number].kill()
        scene.last(0, 2)
        scene.machines[number].start()
    return f"brokers {first} and {second} killed, one after the other"


def frozen(scene: Scene) -> str:
    number = scene.victim()
    scene.machines[number].freeze()
    scene.last(1, 12)
    scene.machines[number].thaw()
    return f"broker {number} frozen"


def cut_off(scene: Scene) -> str:
    """From the other machines; clients may still reach it or not."""
    number = scene.victim()
    others = [n for n in scene.machines if n != number]
    others += [OUTSIDE] if scene.random.random() < 0.5 else []
    for other in others:
        scene.network.drop(number, other)
        scene.network.drop(other, number)
    scene.last(2, 10)
    scene.network.heal()
    return f"machine {number} cut off, both ways{', clients too' * (OUTSIDE in others)}"


def deaf_or_dumb(scene: Scene) -> str:
    """One way only."""
    number, is_deaf = scene.victim(), scene.random.random() < 0.5
    for other in scene.machines:
        if other != number:
            scene.network.drop(*((other, number) if is_deaf else (number, other)))
    scene.last(2, 10)
    scene.network.heal()
    return f"machine {number} hears nobody" if is_deaf else f"nobody hears machine {number}"


def one_link(scene: Scene) -> str:
    one, other = scene.random.sample(list(scene.machines), 2)
    scene.network.drop(one, other)
    if scene.random.random() < 0.5:
        scene.network.drop(other, one)
    scene.last(2, 10)
    scene.network.heal()
    return f"the link from machine {one} to {other} cut"


def etcd_killed(scene: Scene) -> str:
    number = scene.any()
    scene.members[number].kill()
    scene.last(1, 6)
    scene.members[number].start()
    return f"etcd {number} killed"


def machine_killed(scene: Scene) -> str:
    """Broker and etcd member together."""
    number = scene.victim()
    scene.machines[number].kill()
    scene.members[number].kill()
    scene.last(1, 6)
    scene.members[number].start()
    scene.machines[number].start()
    return f"machine {number} killed"


def disk_full(scene: Scene) -> str:
    number, producer = scene.slave(), scene.producer
    scene.machines[number].fill_disk()
    before, producer.pause_s = producer.pause_s, 0.0  # so that the log needs a new file
    scene.last(3, 10)
    producer.pause_s = before
    scene.machines[number].free_disk()
    return f"disk of slave {number} full"


def clock_jump(scene: Scene) -> str:
    number = scene.victim()
    seconds = scene.random.choice([-3600, -30, 30, 3600])
    scene.machines[number].set_clock(seconds)
    scene.last(2, 8)
    scene.machines[number].set_clock(0)
    return f"clock of broker {number} {seconds:+d} s"


Fault = Callable[[Scene], str]

FAULTS: tuple[Fault, ...] = (
    killed,
    killed_in_turn,
    frozen,
    cut_off,
    deaf_or_dumb,
    one_link,
    etcd_killed,
    machine_killed,
    disk_full,
    clock_jump,
)
