"""Every request code against a broker with data, each request answered, by the shapes of real ones.

    python tests/fuzz/fuzz_live.py [--frames 20000] [--seed N] [--limit 1.0]

Unlike `fuzz_server`, which breaks frames, these are all well formed: the fields that a request has,
with values that mean something to this broker (topics, queues, offsets, ids, keys, groups that are
there, and their neighbours), and one or two that do not. What must hold:

- each request is answered, within `--limit` seconds (without those in which other processes had
  the processors), and no answer shows a traceback;
- no exception inside the broker, no growing memory;
- messages that nobody had a right to take are all there, the store stops cleanly and is sound.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz_server import ANONYMOUS_GROWTH_MAX, anonymous_bytes, findings, watch
from mutate import CODES, FIELDS, HEARTBEAT, NASTY_BODIES, NASTY_TEXTS
from peers.in_process import Client, pull_ext, running_broker, send_ext

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.verify import verify
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.files.record import decode_records
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import encode_frame

PEERS = 4
WINDOW = 32
KEPT = "Kept"  # never named in a request
SUSPEND = 2
SIGNS_OF_A_CRASH = ("Traceback", "most recent call", "Error: ", "Exception(")
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
ZERO = re.compile(r"\s*[+-]?0+\s*")


class Peer(Client):
    """A client that answers what the broker asks it, with nothing."""

    def _received(self, command: Command) -> None:
        if command.is_response:
            super()._received(command)
        elif not command.flag & 2:
            answer = Command(0, {}, b"", opaque=command.opaque, flag=1, codec=self.codec)
            self.writer.write(encode_frame(answer))


class Values:
    """What the fields of requests may say."""

    def __init__(self, rng: random.Random, ids: list[str]) -> None:
        self._rng = rng
        self._ids = ids

    def of(self, name: str) -> str:
        rng = self._rng
        if rng.random() < 0.08:
            return rng.choice(NASTY_TEXTS)
        lower = name.lower()
        if lower in ("b", "topic", "defaulttopic", "statskey"):
            return rng.choice(("Fuzz", "Fuzz2", "%RETRY%cg", "%DLQ%cg", "Absent", "TBW102"))
        if "group" in lower or lower == "a":
            return rng.choice(("cg", "pg", "cg2", "absent"))
        if "msgid" in lower or lower in ("transactionid", "key"):
            return rng.choice((*self._ids, "k1", "k7", "absent"))
        if "offset" in lower:
            near = rng.choice((0, 1, 5, 39, 40, 41, 1000, 1 << 40))
            return str(near - rng.choice((0, 0, 1)))
        if "timestamp" in lower or lower == "g":
            return str(rng.choice((0, -1, int(time.time() * 1000), 1 << 62)))
        if lower in ("i", "properties"):
            return self._text()
        return FIELDS.get(name, "1")

    def _text(self) -> str:
        rng = self._rng
        pairs = {"UNIQ_KEY": f"u{rng.randrange(50)}", "KEYS": f"k{rng.randrange(50)}"}
        for name, value in (
            ("TAGS", "t"),
            ("DELAY", str(rng.randrange(-1, 20))),
            ("TIMER_DELAY_SEC", str(rng.choice((-1, 0, 1, 1 << 40)))),
            ("TRAN_MSG", "true"),
            ("PGROUP", "pg"),
            ("RECONSUME_TIME", str(rng.randrange(-2, 20))),
            ("CLUSTER", "x"),
        ):
            if rng.random() < 0.15:
                pairs[name] = value
        return properties.encode(pairs).removesuffix("\x02")


def make_request(rng: random.Random, values: Values, opaque: int) -> Command:
    code = rng.choice(CODES)
    ext = {name: values.of(name) for name in FIELDS if rng.random() < 0.95}
    if code in PULLS:  # no long polls: they would look late
        ext["sysFlag"] = str(rng.randrange(64) & ~SUSPEND)
        ext["suspendTimeoutMillis"] = "0"
    if code == RequestCode.END_TRANSACTION and ZERO.fullmatch(ext.get("commitOrRollback", "")):
        ext["commitOrRollback"] = "8"  # 0 is "not known yet": no answer, as RocketMQ's broker
    batch = encode_batch([(0, b"a", ""), (0, b"b", "KEYS\x01k1\x02")])
    body = rng.choice((HEARTBEAT, b"hello", batch, b"", rng.choice(NASTY_BODIES)))
    codec = rng.choice((JSON, JSON, ROCKETMQ, MSGPACK))
    return Command(code, ext, body, opaque, 0, language="JAVA", version=513, codec=codec)


def own_time() -> float:
    """Seconds, without those in which this process was ready to run and others had the processors:
    a busy machine is no hang."""
    waited_ns = 0
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it has ended
            waited_ns += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])
    return time.monotonic() - waited_ns / 1e9


class Run:
    def __init__(self, app: AppBroker, limit_s: float) -> None:
        self.app = app
        self.limit_s = limit_s
        self.frames = 0
        self.answers: Counter[int] = Counter()
        self.slowest: tuple[float, int] = (0.0, 0)
        self.problems: list[str] = []

    async def fill(self) -> list[str]:
        client = await Client.connect(self.app)
        ids = []
        for topic in ("Fuzz", "Fuzz2", KEPT):
            for number in range(40):
                text = properties.encode({"UNIQ_KEY": f"u{number}", "KEYS": f"k{number}"})
                ext = send_ext(topic, i=text.removesuffix("\x02"))
                answer = await client.request(RequestCode.SEND_MESSAGE_V2, ext, b"%d" % number)
                assert answer.code == 0, answer.remark
                if topic != KEPT:
                    ids.append(answer.ext["msgId"])
        await client.close()
        return ids[::10]

    async def peer(self, rng: random.Random, ids: list[str], count: int) -> None:
        values = Values(rng, ids)
        left = count
        while left > 0:
            client = await Peer.connect(self.app)
            for _ in range(rng.randrange(1, 40)):
                some = [make_request(rng, values, n) for n in range(min(WINDOW, left))]
                left -= len(some)
                if not some or not await self.ask(client, some):
                    break
            await client.close()

    async def ask(self, client: Peer, some: list[Command]) -> bool:
        """False: the connection is over, as an answer may end it."""
        began = own_time()
        futures = {command.opaque: client.expect(command) for command in some}
        client.writer.write(b"".join(map(encode_frame, some)))
        _, waiting = await asyncio.wait(futures.values(), timeout=max(self.limit_s, 1.0) * 20)
        took = own_time() - began
        self.slowest = max(self.slowest, (took, some[0].code))
        self.frames += len(some)
        is_open = True
        for command in some:
            future = futures[command.opaque]
            if future in waiting:
                self.problems.append(f"request {command.code} got no answer: {command.ext}")
            elif future.exception() is not None:
                is_open = False
            else:
                self.look_at(command, future.result())
        if took > self.limit_s:
            self.problems.append(f"{took:.1f} s for {sorted({each.code for each in some})}")
        return is_open and not waiting

    def look_at(self, command: Command, answer: Command) -> None:
        self.answers[answer.code] += 1
        remark = answer.remark or ""
        if any(sign in remark for sign in SIGNS_OF_A_CRASH):
            self.problems.append(f"request {command.code} is answered by a crash: {remark}")

    async def check_kept(self) -> None:
        client = await Client.connect(self.app)
        bodies, at = [], 0
        while True:
            answer = await client.request(RequestCode.PULL_MESSAGE, pull_ext(KEPT, offset=at))
            if answer.code != 0:
                break
            found = decode_records(answer.body)
            bodies += [message.body for message in found]
            at = found[-1].queue_offset + 1
        await client.close()
        if bodies != [b"%d" % number for number in range(40)]:
            self.problems.append(f"{len(bodies)} of 40 messages are left of a topic nobody named")


async def run(frames: int, seed: int, limit_s: float) -> Run:
    settings: dict[str, Any] = {"max_topics": 300, "max_groups": 300}
    with tempfile.TemporaryDirectory() as folder:
        async with running_broker(Path(folder), **settings) as app:
            done = Run(app, limit_s)
            ids = await done.fill()
            before = anonymous_bytes()
            await asyncio.gather(
                *(
                    done.peer(random.Random(f"{seed}-{number}"), ids, frames // PEERS)
                    for number in range(PEERS)
                )
            )
            grown = anonymous_bytes() - before
            if grown > ANONYMOUS_GROWTH_MAX:
                done.problems.append(f"memory grew by {grown >> 20} MiB")
            await done.check_kept()
        report = verify(open_directory(str(Path(folder) / "store")), lambda _: None)
        # Topics that were deleted and recreated have records of before, and no queue for them.
        damage = [p for p in map(str, report.problems) if KEPT in p or "has no entry" not in p]
        done.problems += [f"verify: {problem}" for problem in damage[:3]]
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds for an answer")
    given = parser.parse_args()
    structlog.configure(processors=[watch])
    began = time.monotonic()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        done = runner.run(run(given.frames, given.seed, given.limit))
    for problem in done.problems[:20]:
        print(f"VIOLATION {problem[:500]}")
    print(
        f"{done.frames:,} requests of {len(CODES)} codes, {sum(done.answers.values()):,} answered "
        f"({done.answers[0]:,} by success), slowest {done.slowest[0] * 1000:.0f} ms for {WINDOW}; "
        f"findings: {len(findings) + len(done.problems)}; {time.monotonic() - began:.0f} s, "
        f"seed {given.seed}"
    )
    sys.exit(1 if findings or done.problems else 0)


if __name__ == "__main__":
    main()
