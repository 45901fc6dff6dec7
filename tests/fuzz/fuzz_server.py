"""Fuzz of a live broker over real sockets.

    python tests/fuzz/fuzz_server.py [--seconds 30] [--seed N]

A whole broker with a real store in a temporary folder is sent sound, wrong and damaged requests by
several connections at once, in random slices. All the while a well-behaved client sends and pulls:
what it sent must come back, in time. An exception inside a handler, a growing memory, a store that
does not stop cleanly or a message that is not what was sent is a finding.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, MutableMapping
from pathlib import Path
from typing import Any, NoReturn

import structlog
import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent))

from mutate import frames
from peers.in_process import Client, pull_ext, running_broker, send_ext

from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.files.record import decode_record, decode_records

PEERS = 4
CONTROL_SECONDS_MAX = 5.0
ANONYMOUS_GROWTH_MAX = 256 << 20
FINDINGS = ("request failed", "pull failed", "sends failed", "cleaning up after a client failed")

findings: list[str] = []


def watch(_logger: object, method: str, event: MutableMapping[str, Any]) -> NoReturn:
    """Collect what must not happen; nothing is printed."""
    text = str(event.get("event"))
    if text in FINDINGS or text == "a part of the broker has failed":
        import traceback

        error = sys.exc_info()[1]
        trace = "".join(traceback.format_exception(error)[-6:]) if error else str(event)
        if trace not in findings:
            findings.append(trace)
            print(f"FINDING {event}\n{trace}", file=sys.stderr, flush=True)
    raise structlog.DropEvent


async def attack(port: int, rng: random.Random, deadline: float, counts: dict[str, int]) -> None:
    """One hostile peer after the other."""
    while time.monotonic() < deadline:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        reading = asyncio.create_task(swallow(reader))
        try:
            for _ in range(rng.randrange(1, 200)):
                data = frames(rng)
                counts["writes"] += 1
                for start in range(0, len(data), step := rng.choice([1, 50, 5000, 1 << 20])):
                    writer.write(data[start : start + step])
                    if step < 100 and start > 400:  # a slow start is enough
                        writer.write(data[start + step :])
                        break
                await writer.drain()
                if rng.random() < 0.05:
                    await asyncio.sleep(0)
                if time.monotonic() > deadline:
                    break
        except ConnectionError:
            counts["closed on us"] += 1
        if rng.random() < 0.3 and (transport := writer.transport) is not None:
            transport.abort()
        else:
            writer.close()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def swallow(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 20):
            pass


async def control(app: AppBroker, deadline: float, counts: dict[str, int]) -> None:
    """A well-behaved client: what it sends it must find again."""
    client = await Client.connect(app)
    sent: dict[str, bytes] = {}
    number = 0
    while time.monotonic() < deadline:
        number += 1
        body = b"control-%d" % number
        started = time.monotonic()
        answer = await client.request(310, send_ext("Control"), body)
        assert answer.code == 0, (answer.code, answer.remark)
        sent[answer.ext["msgId"]] = body
        view = app.broker.store.record_at(int(answer.ext["msgId"][16:], 16))
        assert view is not None and decode_record(view, check=True).body == body
        offset = int(answer.ext["queueOffset"])
        ext = pull_ext("Control", offset=offset, sysFlag="6", suspendTimeoutMillis="3000")
        pulled = await client.request(11, ext)
        assert pulled.code == 0, (pulled.code, pulled.remark, offset)
        assert decode_records(pulled.body)[0].body == body
        took = time.monotonic() - started
        assert took < CONTROL_SECONDS_MAX, f"a round of the control client took {took:.1f} s"
        counts["controls"] += 1
        await asyncio.sleep(0.01)
    await client.close()


def anonymous_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


async def run(seconds: float, seed: int) -> dict[str, int]:
    counts = {"writes": 0, "closed on us": 0, "controls": 0}
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "mapped_file_size_commit_log": 32 << 20,
            "max_topics": 300,
            "max_groups": 300,
        }
        async with running_broker(Path(folder), **settings) as app:
            deadline = time.monotonic() + seconds
            before = anonymous_bytes()
            await asyncio.gather(
                control(app, deadline, counts),
                *(
                    attack(app.broker_port, random.Random(f"{seed}-{n}"), deadline, counts)
                    for n in range(PEERS)
                ),
            )
            grown = anonymous_bytes() - before
            assert grown < ANONYMOUS_GROWTH_MAX, f"memory grew by {grown >> 20} MiB"
        assert not (Path(folder) / "store" / "abort").exists(), "the stop was not clean"
        assert os.listdir(folder) == ["store"], "a name left its folder"
        async with running_broker(Path(folder), **settings) as app:  # and it starts again
            client = await Client.connect(app)
            answer = await client.request(310, send_ext("Control"), b"after")
            assert answer.code == 0, answer.remark
            await client.close()
    return counts


def run_command(
    what: str, description: str, run: Callable[[float, int], Coroutine[Any, Any, dict[str, int]]]
) -> None:
    """The command line of a fuzzer of a live server; ends with 1 where it has found something."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    structlog.configure(processors=[watch])
    print(f"{what}: seed {arguments.seed}", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        counts = runner.run(run(arguments.seconds, arguments.seed))
    print(f"{what}: {counts}, {len(findings)} findings")
    if findings:
        sys.exit(1)


if __name__ == "__main__":
    run_command("server", __doc__, run)
