"""All faults at once under Java, Go and Python clients, by a seed (root, JDK, Maven, Go).

    python -m crash.chaos --minutes 20 --seed 1 [--without java go]             (in tests/)

A SYNC_MASTER (SYNC_FLUSH) and its slave, each on a disk of its own, have a producer of each kind
and one group with a consumer of each kind. Every few seconds something happens to one of the two:
SIGKILL, a power cut of its disk, a stop in order, SIGSTOP for seconds, a full disk, idle
connections and garbage. A slave that is ahead of a master which has lost power does not follow it:
its folder is emptied, as the documents say. In the end, and by a set:

- every message that was answered by SEND_OK is in both logs, none that nobody has tried to send;
- queues have no gap at either, the slave's log is its master's, and `verify` finds both sound;
- the group got every message that was answered, once at least.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from crash.chaos.clients import Driven, Member, Python, Sets
from crash.chaos.faults import FAULTS, Patient, Slave
from crash.powercut.disk import CannotMount, LoopDisk, check_possible
from ha.processes import log_files
from peers.aerobee_broker import AerobeeBroker
from peers.go_client import GoClient
from peers.java_client import JavaClient
from peers.tools import wait_for
from peers.wire import Wire

from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.verify import verify
from aerobee.protocol.files.record import decode_records

TOPIC: Final = "Chaos"
QUEUES: Final = 4
PAUSE_S: Final = (2.0, 8.0)  # between two faults
WHOSE: Final = ("", "", "slave's ")  # two of three faults are the master's
LAST_S: Final = 240.0
DISK: Final = 512 << 20
DISK_A_MINUTE: Final = 64 << 20  # of log and queues; the image is sparse
CREATE_TOPIC, PULL = 17, 11
SETTINGS: Final = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": "200000",
    "diskGuardEnable": "false",
    "flushConsumerOffsetInterval": "500",
}
MASTER: Final = {"brokerRole": "SYNC_MASTER"}
JAVA_VERSION: Final = "5.5.0"


def run(folder: Path, minutes: float, seed: int, without: Sequence[str]) -> tuple[str, list[str]]:
    rng = random.Random(seed)
    sets = Sets()
    faults: Counter[str] = Counter()
    with ExitStack() as stack:
        master = Patient(broker_of(stack, folder / "master", minutes, MASTER), rng)
        stack.callback(master.end)
        master.start()
        make_topic(master.broker.broker)
        follows = {"brokerRole": "SLAVE", "brokerId": "1", "namesrvAddr": master.broker.namesrv}
        slave = Slave(broker_of(stack, folder / "slave", minutes, follows), rng)
        stack.callback(slave.end)
        slave.start()
        brokers = {"": master, "slave's ": slave}
        members = [
            stack.enter_context(m) for m in make_members(folder, master.broker, sets, without)
        ]
        until = time.monotonic() + minutes * 60
        while time.monotonic() < until:
            time.sleep(rng.uniform(*PAUSE_S))
            name, whose = rng.choice(sorted(FAULTS)), rng.choice(WHOSE)
            faults[whose + name] += 1
            FAULTS[name](brokers[whose])
            slave.begin_anew_if_ahead()
        for member in members:
            member.stop_sending()
        problems = check(master.broker, slave, sets)
    told = ", ".join(f"{number} {name}" for name, number in sorted(faults.items()))
    acked = Counter(body.partition(".")[0] for body in sets.acked)
    by = ", ".join(f"{number:,} by {name}" for name, number in sorted(acked.items()))
    slowest = max(master.slowest_start, slave.slowest_start)
    text = (
        f"{sum(faults.values())} faults ({told}) in {minutes:g} minutes, {len(sets.acked):,} "
        f"acknowledged ({by}) of {len(sets.tried):,} tried, {len(sets.got):,} consumed; "
        f"{slave.begun_anew} slaves ahead of their master; slowest start {slowest:.1f} s"
    )
    return text, problems


def broker_of(
    stack: ExitStack, folder: Path, minutes: float, settings: dict[str, str]
) -> tuple[AerobeeBroker, LoopDisk]:
    """A broker, not started yet, and its disk."""
    folder.mkdir()
    disk = LoopDisk(folder, "ext4", round(DISK + minutes * DISK_A_MINUTE))
    disk.make()
    stack.callback(disk.remove)
    broker = AerobeeBroker(folder / "broker", **SETTINGS, **settings)
    broker.store = disk.place / "store"
    return broker, disk


def make_topic(address: str) -> None:
    count = str(QUEUES)
    ext = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": count, "perm": "6"}
    ext |= {"writeQueueNums": count, "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    with Wire(address) as wire:
        answer = wire.request(CREATE_TOPIC, ext | {"order": "false"})
        assert answer.code == 0, answer.header


def make_members(
    folder: Path, broker: AerobeeBroker, sets: Sets, without: Sequence[str]
) -> list[Member]:
    members: list[Member] = [Python(broker.namesrv, TOPIC, sets)]
    if "java" not in without:
        client = JavaClient(JAVA_VERSION, folder / "java")
        members.append(Driven("java", client, broker.namesrv, TOPIC, sets, {"poll": 1000}))
    if "go" not in without:
        members.append(Driven("go", GoClient(folder / "go"), broker.namesrv, TOPIC, sets, {}))
    return members


def check(master: AerobeeBroker, slave: Slave, sets: Sets) -> list[str]:
    problems = []
    try:
        wait_for(lambda: sets.acked <= sets.got.keys(), timeout=LAST_S, what="all is consumed")
    except AssertionError:
        missing = sorted(sets.acked - sets.got.keys())
        problems.append(f"{len(missing)} acknowledged were never consumed, as {missing[:3]}")
    try:
        wait_for(lambda: slave.has_all_of(master), timeout=LAST_S, what="the slave has all of it")
    except AssertionError as error:
        problems.append(str(error))
    problems += check_log("", master, sets)
    problems += check_log("the slave's ", slave.broker, sets)
    slave.broker.stop()
    master.stop()
    if not is_prefix(slave.broker.store, master.store):
        problems.append("the slave's log is not its master's")
    for broker in (master, slave.broker):
        report = verify(open_directory(str(broker.store)), lambda _: None)
        problems += [f"verify: {problem}" for problem in report.problems[:3]]
    return problems


def check_log(whose: str, broker: AerobeeBroker, sets: Sets) -> list[str]:
    problems = []
    stored: Counter[str] = Counter()
    with Wire(broker.broker, timeout=60) as wire:
        for queue_id in range(QUEUES):
            problems += [f"{whose}{gap}" for gap in read_queue(wire, queue_id, stored)]
    if lost := sets.acked - stored.keys():
        reason = f"{len(lost)} acknowledged are not in {whose or 'the '}log"
        problems.append(f"{reason}, as {sorted(lost)[:3]}")
    if strange := stored.keys() - sets.tried:
        reason = f"{len(strange)} in {whose or 'the '}log were never sent"
        problems.append(f"{reason}, as {sorted(strange)[:3]}")
    return problems


def is_prefix(copy: Path, original: Path) -> bool:
    """Whether the log's files, up to the copy's end, have the same bytes."""
    has, should_have = log_files(copy), log_files(original)
    return bool(has) and all(
        should_have.get(name, b"").startswith(data) for name, data in has.items()
    )


def read_queue(wire: Wire, queue_id: int, stored: Counter[str]) -> list[str]:
    at = 0
    while True:
        ext = {"consumerGroup": "audit", "topic": TOPIC, "queueId": str(queue_id)}
        ext |= {"queueOffset": str(at), "maxMsgNums": "500", "sysFlag": "4", "commitOffset": "0"}
        ext |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
        answer = wire.request(PULL, ext | {"expressionType": "TAG"})
        if answer.code != 0:
            return []
        for message in decode_records(answer.body):
            if message.queue_offset != at:
                return [f"queue {queue_id} has a gap from {at} to {message.queue_offset}"]
            stored[bytes(message.body).decode()] += 1
            at += 1


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="crash.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", nargs="*", default=[], choices=["java", "go"])
    given = parser.parse_args(arguments)
    try:
        check_possible("ext4")
    except CannotMount as error:
        print(error, file=sys.stderr)
        return 2
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aerobee-chaos-") as folder:
        text, problems = run(Path(folder), given.minutes, given.seed, given.without)
    for problem in problems:
        print(f"VIOLATION {problem}")
    seconds = time.monotonic() - began
    print(f"{text}; violations: {len(problems)}; {seconds:.0f} s, seed {given.seed}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
