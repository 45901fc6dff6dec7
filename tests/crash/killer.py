"""SIGKILL of an `aerobee broker`, again and again; what a reader finds after each restart.

It is killed while it writes, and so are starts after that: at a random moment, or at a random one
of their calls to the disk (`killed_start.py`), up to three in a row.

A writer process cannot know what a dead broker has done with its last requests, so each message is
acknowledged, refused or unknown. After each restart every acknowledged one must be there with its
body, at the queue offset that was told; an unknown one may be there or not; queue offsets have no
gap and no repeat; and the directory must verify after each kill. In ASYNC_FLUSH too: a killed
process leaves its pages to the kernel.

    python -m crash.killer 200        (in tests/)
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_command import FORKED
from peers.aerobee_broker import AerobeeBroker
from peers.wire import Wire, pull_ext

from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.verify import Report, verify
from aerobee.protocol.files.record import StoredMessage, decode_records

SIZES = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "20000",
    "flushIntervalConsumeQueue": "100",
    "flushConsumeQueueThoroughInterval": "300",
}
TOPIC = "Kill"
QUEUES = 4
WRITERS = 2
IN_FLIGHT = 32
KILLS_OF_A_STORE = 25
AT_ONCE = 2  # brokers: much of a cycle is waiting
CALLS_OF_A_START = 120  # disk calls among which the end of a start is picked


@dataclass
class Ledger:
    """What was sent over all lives."""

    sent: dict[str, bytes] = field(default_factory=dict)  # by key: each once, answered or not
    told: dict[str, tuple[int, int]] = field(default_factory=dict)  # acknowledged: queue, offset
    refused: set[str] = field(default_factory=set)
    checked: dict[int, list[str]] = field(default_factory=dict)  # by queue: keys that were read
    kills: int = 0  # of a broker that wrote
    start_kills: int = 0
    start_s: float = 0.5  # from the launch to the ready line, when last measured


def header(queue_id: int, key: str) -> dict[str, str]:
    return {
        "a": "PG",
        "b": TOPIC,
        "c": "TBW102",
        "d": str(QUEUES),
        "e": str(queue_id),
        "f": "0",
        "g": str(int(time.time() * 1000)),
        "h": "0",
        "i": f"KEYS\x01{key}\x02UNIQ_KEY\x01{key}\x02TAGS\x01t\x02",
        "j": "0",
        "k": "false",
        "m": "false",
    }


def write(address: str, ledger: Ledger, name: str, rng: random.Random) -> None:
    """Send with several in flight until the broker is gone."""
    waiting: dict[int, str] = {}
    number = 0
    try:
        with Wire(address, timeout=20) as wire:
            while True:
                while len(waiting) < IN_FLIGHT:
                    key = f"{name}-{number}"
                    number += 1
                    body = f"{key}:".encode() + rng.randbytes(rng.choice((0, 30, 900, 5000)))
                    ledger.sent[key] = body
                    opaque = wire.send(310, header(rng.randrange(QUEUES), key), body)
                    waiting[opaque] = key
                answer = wire.receive()
                key = waiting.pop(int(answer.header["opaque"]))
                if answer.code == 0:
                    place = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
                    ledger.told[key] = place
                else:
                    ledger.refused.add(key)
    except OSError:
        return  # killed: the outcome of pending sends is unknown


def live_and_die(broker: AerobeeBroker, ledger: Ledger, rng: random.Random) -> None:
    """Write for a moment and kill the broker meanwhile."""
    writers = [
        threading.Thread(
            target=write,
            args=(broker.broker, ledger, f"{ledger.kills}.{n}", random.Random(rng.random())),
        )
        for n in range(WRITERS)
    ]
    before = len(ledger.told)
    for writer in writers:
        writer.start()
    time.sleep(rng.uniform(0.02, 0.5))
    deadline = time.monotonic() + 10
    while len(ledger.told) - before < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    broker.kill()
    for writer in writers:
        writer.join(timeout=30)
    ledger.kills += 1


def die_in_starts(broker: AerobeeBroker, ledger: Ledger, rng: random.Random) -> None:
    """Starts that are killed before they finish."""
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        if rng.random() < 0.7:
            # Often at a truncate: half-way through a cut a file is short.
            ends = (f"{rng.randint(0, CALLS_OF_A_START)}", f"{rng.randint(0, 15)}:ftruncate")
            broker.launch(sys.executable, "-m", "crash.killed_start", rng.choice(ends))
            broker.wait_until_ready_or_gone()
            broker.wait_for_exit(rng.uniform(0, 0.3))  # it saves shortly after its start
        else:
            broker.launch()
            time.sleep(rng.uniform(0.4, 1.1) * ledger.start_s)
        broker.kill()
        ledger.start_kills += 1
        check_directory(broker, f"after {ledger.start_kills} killed starts")


def check_directory(broker: AerobeeBroker, when: str) -> Report:
    report = verify(open_directory(str(broker.store)), lambda _: None)
    assert not report.problems, f"{when}: {report.problems[0]}"
    return report


def read_from(wire: Wire, queue_id: int, offset: int) -> list[StoredMessage]:
    """The queue from an offset to its end."""
    found: list[StoredMessage] = []
    while True:
        answer = wire.request(11, pull_ext(TOPIC, queue_id, offset + len(found)))
        if answer.code != 0:
            assert "maxOffset" in answer.ext, answer.header
            end = int(answer.ext["maxOffset"])
            assert end == offset + len(found), (
                f"queue {queue_id}: nothing at {offset + len(found)} of {end}: {answer.header}"
            )
            return found
        found += decode_records(answer.body)


def check_read(address: str, ledger: Ledger, *, all_of_it: bool) -> None:
    """What a reader finds: gapless, intact, nothing acknowledged lost."""
    with Wire(address, timeout=30) as wire:
        for queue_id in range(QUEUES):
            known = ledger.checked.setdefault(queue_id, [])
            start = 0 if all_of_it else len(known)
            for number, message in enumerate(read_from(wire, queue_id, start), start):
                key = message.property_map()["KEYS"]
                assert message.queue_offset == number, f"queue {queue_id} has a gap at {number}"
                assert ledger.sent.get(key) == message.body, f"{key}: not what was sent"
                if number < len(known):
                    assert known[number] == key, f"{key} took the place of {known[number]}"
                else:
                    known.append(key)
    places = {
        key: (queue_id, number)
        for queue_id, keys in ledger.checked.items()
        for number, key in enumerate(keys)
    }
    assert len(places) == sum(map(len, ledger.checked.values())), "a message is there twice"
    for key, place in ledger.told.items():
        assert places.get(key) == place, f"{key} was acknowledged at {place}: {places.get(key)}"
    wrong = ledger.refused & places.keys()
    assert not wrong, f"refused but stored: {wrong}"


def make_topic(address: str) -> None:
    """By an operator's request, which is on disk before it is answered: what a first send makes
    may be saved a fifth of a second later."""
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "perm": "6", "topicSysFlag": "0"}
    numbers = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "order": "false"}
    with Wire(address) as wire:
        answer = wire.request(17, {**fields, **numbers, "topicFilterType": "SINGLE_TAG"})
        assert answer.code == 0, answer


def run(folder: Path, kills: int, seed: int, flush: str) -> Ledger:
    """`kills` kills in one flush mode; AssertionError when something is lost."""
    rng = random.Random(seed)
    ledger = Ledger()
    broker = AerobeeBroker(folder, flushDiskType=flush, **SIZES)
    with broker:
        make_topic(broker.broker)
        for number in range(1, kills + 1):
            live_and_die(broker, ledger, rng)
            check_directory(broker, f"after kill {number}")
            die_in_starts(broker, ledger, rng)
            launched = time.monotonic()
            broker.start()
            ledger.start_s = time.monotonic() - launched
            check_read(broker.broker, ledger, all_of_it=number % 10 == 0 or number == kills)
        broker.stop()
    report = check_directory(broker, "after the stop")
    assert report.records == sum(map(len, ledger.checked.values()))
    return ledger


def parts(kills: int, seed: int) -> Iterator[tuple[int, int, str]]:
    """Kills, seed and flush mode of each store, the modes in turns. A store is read and verified
    whole after each kill: an old one with all that was ever sent would take most of the time."""
    halves = {"SYNC_FLUSH": kills - kills // 2, "ASYNC_FLUSH": kills // 2}
    while any(halves.values()):
        for flush, left in halves.items():
            if left:
                yield min(left, KILLS_OF_A_STORE), seed, flush
                seed += 1
                halves[flush] -= min(left, KILLS_OF_A_STORE)


def run_part(kills: int, seed: int, flush: str) -> Counter[str]:
    folder = Path(tempfile.mkdtemp(prefix="aerobee-killtest-"))
    began = time.monotonic()
    ledger = run(folder, kills, seed, flush)
    shutil.rmtree(folder)
    print(
        f"{flush}: {ledger.kills} kills of writing brokers, {ledger.start_kills} of starts; "
        f"{len(ledger.sent)} sent, {len(ledger.told)} acknowledged, 0 lost, 0 gaps; "
        f"{time.monotonic() - began:.0f} s, seed {seed}",
        flush=True,
    )
    return Counter(
        kills=ledger.kills,
        starts=ledger.start_kills,
        sent=len(ledger.sent),
        told=len(ledger.told),
    )


def main(arguments: Sequence[str]) -> int:
    kills = int(arguments[0]) if arguments else 200
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    os.environ.setdefault(FORKED, "1")
    began = time.monotonic()
    totals: Counter[str] = Counter()
    with ProcessPoolExecutor(AT_ONCE) as pool:
        for part in [pool.submit(run_part, *each) for each in parts(kills, seed)]:
            totals += part.result()
    print(
        f"{totals['kills']:,} kills of writing brokers, half in each flush mode, and "
        f"{totals['starts']:,} of starts; {totals['sent']:,} sent, {totals['told']:,} "
        f"acknowledged, 0 lost, 0 gaps; {time.monotonic() - began:.0f} s, seed {seed}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
