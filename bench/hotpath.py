"""CPU microseconds per message inside the process: feed, put, dispatch; no socket, no client.

    python bench/hotpath.py [--profile] [--body 1024] [--window 32] [--sync]

A real store in a temporary folder, a real hot path; reads of 32 frames, as a client with 32 sends
in flight makes them. The loop's thread alone is counted: files are made ahead in another. Minimum
and median of repeated rounds: others' load makes rounds slower, never faster.
"""

import argparse
import asyncio
import cProfile
import itertools
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.turns import Turns
from aerobee.broker.daemon.wiring import make_broker, make_front
from aerobee.broker.fast.choice import HotFeed
from aerobee.broker.fast.hot_path import HotPath
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.busy_poll import BusyPoll
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.feed import Feed, Limits
from aerobee.broker.net.outbox import Part
from aerobee.broker.settings import Settings
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame

CODECS = {"JSON": JSON, "ROCKETMQ": ROCKETMQ, "MSGPACK": MSGPACK}
TOPIC = "HotPath"
ROUND_MESSAGES = 1024


class NoServer:
    """Replaces the server: there is no socket here."""

    limits = Limits()

    def __init__(self) -> None:
        self.busy_poll = BusyPoll(asyncio.get_running_loop())
        self.turns = Turns(slice_s=float("inf"))

    def opened(self, connection: Connection) -> bool:
        return True

    def refusal(self, connection: Connection) -> Feed | None:
        return None

    def lost(self, connection: Connection) -> None:
        return None

    def make_feed(self, connection: Connection) -> Feed:
        raise AssertionError("the hot path is made by hand here")


class Unwritten(Connection):
    """Discards what is written: a pull that is not plain writes its answer itself."""

    answer: Sequence[Part] = ()

    def write(self, parts: Sequence[Part]) -> None:
        self.answer = parts


def reads(
    codec: int,
    body: bytes,
    window: int,
    count: int,
    sign: Callable[[Command], object] = lambda _command: None,
) -> list[bytes]:
    """What arrives in each read: `window` sends, as Java's client writes them."""
    made = []
    for start in range(0, count, window):
        frames = []
        for number in range(start, start + window):
            text = properties.encode(
                {
                    "KEYS": f"key{number:010d}",
                    "UNIQ_KEY": f"7F0000010000{number:020X}",
                    "WAIT": "true",
                    "TAGS": "TagA",
                }
            )
            ext = {
                "a": "ProducerGroup",
                "b": TOPIC,
                "c": "TBW102",
                "d": "4",
                "e": str(number % 4),
                "f": "0",
                "g": "1700000000000",
                "h": "0",
                "i": text.removesuffix("\x02"),
                "j": "0",
                "k": "false",
                "m": "false",
            }
            command = Command(310, ext, body, number, language="JAVA", codec=codec)
            sign(command)
            frames.append(encode_frame(command))
        made.append(b"".join(frames))
    return made


def check(answers: list[bytes], count: int) -> None:
    decoder = FrameDecoder()
    commands = [decode_command(*frame) for frame in decoder.feed(b"".join(answers))]
    assert [command.code for command in commands] == [0] * count, commands[:1]


def measure(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    taken = []
    for _ in range(rounds):
        started = time.thread_time()
        work()
        taken.append((time.thread_time() - started) / ROUND_MESSAGES * 1e6)
    return min(taken), statistics.median(taken)


def sends(broker: Broker, hot: HotPath, arguments: argparse.Namespace) -> None:
    body = bytes(range(256)) * (arguments.body // 256) + bytes(arguments.body % 256)
    for name, codec in CODECS.items():
        batches = reads(codec, body, arguments.window, ROUND_MESSAGES)
        check([b"".join(hot.feed(batch)) for batch in batches], ROUND_MESSAGES)
        broker.store.reput.catch_up()

        def one_round(batches: list[bytes] = batches) -> None:
            for batch in batches:
                hot.feed(batch)
            broker.store.reput.catch_up()  # as many at once as the daemon dispatches under load

        def feed_only(batches: list[bytes] = batches) -> None:
            for batch in batches:
                hot.feed(batch)

        profile = cProfile.Profile() if arguments.profile and codec == JSON else None
        if profile is not None:
            profile.runcall(one_round)
        total = measure(one_round, arguments.rounds)
        fed = measure(feed_only, max(3, arguments.rounds // 3))
        broker.store.reput.catch_up()
        print(
            f"send {name:8} total {total[0]:5.2f} / {total[1]:5.2f}   "
            f"feed+put {fed[0]:5.2f} / {fed[1]:5.2f}   us per message, min / median"
        )
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)


def batches(broker: Broker, hot: HotPath, arguments: argparse.Namespace) -> None:
    """Messages of 100 bytes, 32 in a request, as producers that batch send them."""
    text = "KEYS\x01key%010d\x02UNIQ_KEY\x017F0000010000%020X\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    for name, codec in CODECS.items():
        requests = []
        for start in range(0, ROUND_MESSAGES, 32):
            numbers = range(start, start + 32)
            body = encode_batch([(0, bytes(100), text % (number, number)) for number in numbers])
            ext = {"a": "pg", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(start // 32 % 4)}
            ext |= {"f": "0", "g": "1700000000000", "h": "0", "i": "", "j": "0", "m": "true"}
            requests.append(encode_frame(Command(320, ext, body, start, codec=codec)))
        check([b"".join(hot.feed(request)) for request in requests], len(requests))
        broker.store.reput.catch_up()

        def one_round(requests: list[bytes] = requests) -> None:
            for request in requests:
                hot.feed(request)
            broker.store.reput.catch_up()

        low, middle = measure(one_round, arguments.rounds)
        print(f"batch {name:8} total {low:5.2f} / {middle:5.2f}   us per message, min / median")


def pulls(broker: Broker, hot: HotPath, arguments: argparse.Namespace) -> None:
    connection = hot.connection
    assert isinstance(connection, Unwritten)
    for (name, codec), count in itertools.product(CODECS.items(), (32, 1000)):
        ext = {
            "consumerGroup": "g",
            "topic": TOPIC,
            "queueId": "1",
            "queueOffset": "0",
            "maxMsgNums": str(count),
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "1",
            "expressionType": "TAG",
        }
        request = encode_frame(Command(11, ext, opaque=1, language="JAVA", codec=codec))
        connection.answer = ()
        answer = b"".join(hot.feed(request)) or b"".join(connection.answer)
        [frame] = FrameDecoder(64 << 20).feed(answer)
        assert decode_command(*frame).code == 0, answer[:1000]
        times = max(1, ROUND_MESSAGES // count)

        def one_round(request: bytes = request, times: int = times) -> None:
            for _ in range(times):
                hot.feed(request)

        low, middle = measure(one_round, arguments.rounds)
        scale = ROUND_MESSAGES / (times * count)
        print(
            f"pull {count:4} {name:8} total {low * scale:5.2f} / {middle * scale:5.2f}   "
            "us per message"
        )


async def main(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            store_path_root_dir=folder,
            mapped_file_size_commit_log=1 << 28,
            message_index_enable=not arguments.no_index,
        )
        broker = make_broker(settings, Clock())
        broker.turns.slice_s = float("inf")  # deferred work is not resumed here
        broker.store.load()
        broker.topics.load()
        broker.groups.load()
        front = make_front(broker)
        connection = Unwritten(NoServer())
        connection.peer = connection.local = ("127.0.0.1", 10911)
        hot = HotFeed(connection, front.dispatcher, 16 << 20, front.sends, front.pulls)
        sends(broker, hot, arguments)
        batches(broker, hot, arguments)
        pulls(broker, hot, arguments)
        broker.store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--no-index", action="store_true")
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=100)
    asyncio.run(main(parser.parse_args()))
