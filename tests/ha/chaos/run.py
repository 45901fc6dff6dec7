"""`make chaos N=200`: faults one after the other, under a producer; the checker after each of them.

Root, etcd-server and iproute2. A seed gives the same faults, not the same moments.

    cd tests && python -m ha.chaos.run 200 [--seed 1] [--within 10] [--only cut_off,frozen]
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from peers.tools import wait_for

from aerobee.broker.store.files.layout import offset_name
from ha.chaos.faults import FAULTS, Fault, PacedProducer, Scene
from ha.chaos.machines import Machine, Member, build_clock
from ha.chaos.network import Network
from ha.etcd_server import need_etcd
from ha.failover_cluster import Cluster
from ha.processes import Producer, log_end, log_files
from ha.test_killed import check

COUNT = 3
CHECK_EACH = 5  # rounds between two readings of all queues
HEALED_S = 180


class Machines(Cluster):
    """As `Cluster`, on machines of their own."""

    def __init__(self, folder: Path) -> None:
        self.members = {n: Member(folder / f"etcd{n}", n, COUNT) for n in range(1, COUNT + 1)}
        told = {
            "etcdEndpoints": ";".join(member.url for member in self.members.values()),
            "slaveTimeout": "2000",
        }
        clock = build_clock(folder)
        self.machines = {
            n: Machine(folder / f"broker{n}", n, clock, **told) for n in range(1, COUNT + 1)
        }
        self.brokers = dict(self.machines)

    def __enter__(self) -> Machines:
        for member in self.members.values():
            member.start()
        for member in self.members.values():
            member.wait_healthy()
        for machine in self.machines.values():
            machine.start()
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines.values():
            if machine.is_running:
                machine.thaw()
                machine.kill()
            machine.unmount()
        for member in self.members.values():
            member.kill()

    def wait_healed(self) -> None:
        wait_for(
            lambda: self.in_sync() == sorted(self.brokers),
            timeout=HEALED_S,
            what="all are in sync again",
        )

    def check_acked(self, producer: Producer) -> None:
        """All that is acknowledged by now is there, while more comes."""
        so_far = Producer("")
        so_far.acked = dict(producer.acked)
        check(so_far, self.brokers[self.wait_for_leader()].broker)

    def check_equal(self) -> None:
        """What all have is the same, while more comes."""
        end = min(log_end(machine.broker) for machine in self.machines.values())
        found = [up_to(end, log_files(machine.store)) for machine in self.machines.values()]
        found = where_all_have_files(found, end)
        assert found[0] == found[1] == found[2], f"logs differ below {end}: {difference(found)}"


def where_all_have_files(logs: list[dict[str, bytes]], end: int) -> list[dict[str, bytes]]:
    """Old files may be gone at some; one that has none below `end` begins there, or later."""
    first = max(min(log, default=offset_name(end)) for log in logs)
    return [{name: log[name] for name in log if name >= first} for log in logs]


def difference(logs: list[dict[str, bytes]]) -> str:
    """Where they differ first, and what each has there."""
    for name in sorted(set().union(*logs)):
        datas = [log.get(name, b"") for log in logs]
        if len(set(datas)) > 1:
            at = next(
                (n for n, values in enumerate(zip(*datas, strict=False)) if len(set(values)) > 1),
                min(map(len, datas)),
            )
            sizes, there = [len(data) for data in datas], [data[at : at + 24] for data in datas]
            return f"at {int(name) + at}, sizes in file {name} {sizes}, there: {there}"
    return "not any more"


def up_to(end: int, files: dict[str, bytes]) -> dict[str, bytes]:
    cut = {name: data[: max(0, end - int(name))] for name, data in files.items()}
    return {name: data.rstrip(b"\0") for name, data in cut.items() if data}


def play(
    rounds: int, seed: int, within_s: float, folder: Path, faults: Sequence[Fault] = FAULTS
) -> float:
    """The longest time without an ack, of all rounds."""
    chance, longest = random.Random(seed), 0.0
    with Network(COUNT) as network, Machines(folder) as cluster:
        cluster.wait_healed()
        producer = PacedProducer(cluster)
        producer.start()
        try:
            producer.acknowledge(20)
            for number in range(1, rounds + 1):
                machines, members = cluster.machines, cluster.members
                scene = Scene(network, machines, members, producer, cluster.leader(), chance)
                told = play_one(cluster, scene, number, within_s, chance.choice(faults))
                longest = max(longest, producer.longest_s)
                print(f"{number:4d} {told}; {len(producer.acked)} acknowledged", flush=True)
        finally:
            producer.stop()
        cluster.check(producer)
    return longest


def play_one(cluster: Machines, scene: Scene, number: int, within_s: float, befall: Fault) -> str:
    """One fault, and the checker; what happened."""
    producer = scene.producer
    producer.longest_s = 0.0
    producer.story.clear()
    fault = befall(scene)
    producer.tell("the fault is over")
    began = time.monotonic()
    producer.acknowledge(1)
    acked_s = time.monotonic() - began
    if acked_s > within_s:
        print("what the producer met:", *producer.story, sep="\n  ")
        raise AssertionError(f"{fault}: the next ack came {acked_s:.1f} s after it")
    cluster.wait_healed()
    in_sync_s = time.monotonic() - began
    cluster.check_equal()
    if number % CHECK_EACH == 0:
        cluster.check_acked(producer)
    return (
        f"{fault}: {producer.longest_s:.1f} s without an ack, the next one {acked_s:.1f} s after "
        f"the fault, all in sync after {in_sync_s:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rounds", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", type=float, default=10, help="seconds to the next ack")
    names = [fault.__name__ for fault in FAULTS]
    parser.add_argument("--only", default=",".join(names), help="the kinds of faults")
    options = parser.parse_args()
    need_etcd()
    folder = Path(tempfile.mkdtemp(prefix="aerobee-chaos-"))
    try:
        only = [FAULTS[names.index(name)] for name in options.only.split(",")]
        longest = play(options.rounds, options.seed, options.within, folder, only)
    except BaseException:
        print(f"what the brokers said is kept in {folder}")
        raise
    shutil.rmtree(folder)
    print(f"{options.rounds} rounds: nothing acknowledged is lost; {longest:.1f} s at most without")


if __name__ == "__main__":
    main()
