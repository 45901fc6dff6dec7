"""All faults at once under Java, Go and Python clients, by a seed (root, JDK, Maven, Go).

    python -m crash.chaos --minutes 20 --seed 1 [--without java go]             (in tests/)

A broker (SYNC_FLUSH) on a disk of its own has a producer of each kind and one group with a consumer
of each kind. Every few seconds something happens to it: SIGKILL, a power cut of its disk, a stop in
order, SIGSTOP for seconds, a full disk, idle connections and garbage. In the end, and by a set:

- every message that was answered by SEND_OK is in the log, none that nobody has tried to send;
- queues have no gap, and `verify` finds the store sound;
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
from crash.chaos.faults import FAULTS, Patient
from crash.powercut.disk import CannotMount, LoopDisk, check_possible
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
JAVA_VERSION: Final = "5.5.0"


def run(folder: Path, minutes: float, seed: int, without: Sequence[str]) -> tuple[str, list[str]]:
    rng = random.Random(seed)
    disk = LoopDisk(folder, "ext4", round(DISK + minutes * DISK_A_MINUTE))
    disk.make()
    broker = AerobeeBroker(folder / "broker", **SETTINGS)
    broker.store = disk.place / "store"
    patient = Patient(broker, disk, rng)
    sets = Sets()
    faults: Counter[str] = Counter()
    with ExitStack() as stack:
        stack.callback(disk.remove)
        stack.callback(patient.end)
        broker.start()
        make_topic(broker.broker)
        members = [stack.enter_context(m) for m in make_members(folder, broker, sets, without)]
        until = time.monotonic() + minutes * 60
        while time.monotonic() < until:
            time.sleep(rng.uniform(*PAUSE_S))
            name = rng.choice(sorted(FAULTS))
            faults[name] += 1
            FAULTS[name](patient)
        for member in members:
            member.stop_sending()
        problems = check(broker, sets)
    told = ", ".join(f"{number} {name}" for name, number in sorted(faults.items()))
    acked = Counter(body.partition(".")[0] for body in sets.acked)
    by = ", ".join(f"{number:,} by {name}" for name, number in sorted(acked.items()))
    text = (
        f"{sum(faults.values())} faults ({told}) in {minutes:g} minutes, {len(sets.acked):,} "
        f"acknowledged ({by}) of {len(sets.tried):,} tried, {len(sets.got):,} consumed; "
        f"slowest start {patient.slowest_start:.1f} s"
    )
    return text, problems


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


def check(broker: AerobeeBroker, sets: Sets) -> list[str]:
    problems = []
    try:
        wait_for(lambda: sets.acked <= sets.got.keys(), timeout=LAST_S, what="all is consumed")
    except AssertionError:
        missing = sorted(sets.acked - sets.got.keys())
        problems.append(f"{len(missing)} acknowledged were never consumed, as {missing[:3]}")
    stored: Counter[str] = Counter()
    with Wire(broker.broker, timeout=60) as wire:
        for queue_id in range(QUEUES):
            problems += read_queue(wire, queue_id, stored)
    if lost := sets.acked - stored.keys():
        problems.append(f"{len(lost)} acknowledged are not in the log, as {sorted(lost)[:3]}")
    if strange := stored.keys() - sets.tried:
        problems.append(f"{len(strange)} in the log were never sent, as {sorted(strange)[:3]}")
    broker.stop()
    report = verify(open_directory(str(broker.store)), lambda _: None)
    return problems + [f"verify: {problem}" for problem in report.problems[:3]]


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
