"""What access control costs: CPU per send, signed against unsigned, in interleaved rounds.

    python bench/signed.py [--body 1024] [--window 32] [--rounds 60]

As `bench/hotpath.py`: no socket, no client. Two brokers, one with access control; the least of all
rounds of each counts.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aerobee.broker.base.clock import Clock
from aerobee.broker.daemon.wiring import make_broker, make_front
from aerobee.broker.fast.choice import HotFeed
from aerobee.broker.fast.hot_path import HotPath
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.connection import Connection
from aerobee.broker.settings import Settings
from aerobee.protocol.wire.signing import Credentials
from bench.hotpath import CODECS, ROUND_MESSAGES, TOPIC, NoServer, Unwritten, check, reads

MakePath = Callable[[Connection], HotPath]

USERS = f"""accounts:
  - {{accessKey: root, secretKey: {"r" * 43}, type: Super}}
  - accessKey: producer
    secretKey: {"p" * 43}
    policies: [allow Topic:{TOPIC} Pub]
"""


@contextmanager
def running(folder: str, *, signed: bool) -> Iterator[tuple[Broker, MakePath]]:
    values = {}
    if signed:
        path = Path(folder, "access.yml")
        path.write_text(USERS)
        path.chmod(0o600)
        values = {"acl_enable": True, "acl_file": str(path)}
    settings = Settings(store_path_root_dir=folder, mapped_file_size_commit_log=1 << 28, **values)
    broker = make_broker(settings, Clock())
    broker.turns.slice_s = float("inf")  # deferred work is not resumed here
    broker.guard.load()
    broker.store.load()
    broker.topics.load()
    broker.groups.load()
    front = make_front(broker)

    def make(connection: Connection) -> HotPath:
        return HotFeed(connection, front.dispatcher, 16 << 20, front.sends, front.pulls)

    yield broker, make
    broker.store.close()


def path(make: MakePath) -> HotPath:
    connection = Unwritten(NoServer())
    connection.peer = connection.local = ("127.0.0.1", 10911)
    return make(connection)


def cost(broker: Broker, hot: HotPath, batches: list[bytes]) -> float:
    started = time.thread_time()
    for batch in batches:
        hot.feed(batch)
    broker.store.reput.catch_up()
    return (time.thread_time() - started) / ROUND_MESSAGES * 1e6


async def main(arguments: argparse.Namespace) -> None:
    credentials = Credentials("producer", "p" * 43)
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
        running(one, signed=False) as plain,
        running(other, signed=True) as guarded,
    ):
        one_way, other_way = (plain[0], path(plain[1])), (guarded[0], path(guarded[1]))
        for name, codec in CODECS.items():
            body = bytes(arguments.body)
            ways = (
                (*one_way, reads(codec, body, arguments.window, ROUND_MESSAGES)),
                (
                    *other_way,
                    reads(codec, body, arguments.window, ROUND_MESSAGES, credentials.sign),
                ),
            )
            for _, hot, batches in ways:
                check([b"".join(hot.feed(batch)) for batch in batches], ROUND_MESSAGES)
            rounds = [[cost(*way) for way in ways] for _ in range(arguments.rounds)]
            unsigned, signed = (min(column) for column in zip(*rounds, strict=True))
            print(
                f"send {name:8} unsigned {unsigned:5.2f}   signed {signed:5.2f} us per message   "
                f"x {signed / unsigned:.2f}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=60)
    asyncio.run(main(parser.parse_args()))
