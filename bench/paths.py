"""`make bench-paths`: one broker with its compiled part and one in pure Python, in turns.

Both are driven by bench/load/load.c. CPU is all that the broker's threads took, the least of all
pairs, which neighbours disturb little; the rate is the largest.

    python -m bench.paths [--pairs 3] [--sends 100000]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from aerobee.broker import compiled
from bench.brokers import AEROBEE
from bench.load_client import drive_of, load
from bench.rows import running
from bench.session import Figures, Session

PATHS = {"pure": "1", "compiled": "0"}  # AEROBEE_PURE
# Row -> what part of the sends it makes, and the options of the load client.
ROWS: dict[str, tuple[float, dict[str, object]]] = {
    "send 4x32, 1 KB": (1, {}),
    "send 4x32, 1 KB, ROCKETMQ header": (1, {"codec": "rmq"}),
    "send 4x32, 100 B": (1, {"size": 100}),
    "send 1x256, 1 KB": (1, {"conns": 1, "window": 256}),
    "send batches of 32, 1 KB": (1, {"batch": 32, "window": 4}),
    "send 1x1, 1 KB": (0.1, {"conns": 1, "window": 1}),
}
SYNC_ROWS: dict[str, tuple[float, dict[str, object]]] = {
    "SYNC_FLUSH 8x32, 1 KB": (0.5, {"conns": 8, "window": 32}),
}


def measure(folder: Path, sends: int) -> Figures:
    figures: Figures = {}
    for flush, rows in (("ASYNC_FLUSH", ROWS), ("SYNC_FLUSH", SYNC_ROWS)):
        with running(AEROBEE, folder, flushDiskType=flush) as (broker, _):
            session = Session(broker, drive_of(broker))
            load("send", broker.port, topic="WarmUp", n=sends // 4)
            for row, (share, options) in rows.items():
                session.send(row, int(sends * share) // 32 * 32, **options)
            figures |= session.figures
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--sends", type=int, default=100_000)
    arguments = parser.parse_args()
    if compiled.hot is None:
        print(f"there is nothing to compare: this installation is {compiled.PATH}", file=sys.stderr)
        return 1
    best: dict[str, Figures] = {path: {} for path in PATHS}
    with tempfile.TemporaryDirectory() as work:
        for pair in range(arguments.pairs):
            for path in PATHS if pair % 2 == 0 else reversed(PATHS):
                os.environ[compiled.PURE] = PATHS[path]
                for name, value in measure(Path(work) / "broker", arguments.sends).items():
                    choose = max if name.endswith("msg/s") else min
                    best[path][name] = choose(value, best[path].get(name, value))
            print(f"pair {pair + 1} of {arguments.pairs} done", file=sys.stderr)
    print(f"best of {arguments.pairs}                                 pure   compiled    ratio")
    for name, value in best["pure"].items():
        ratio = best["compiled"][name] / value
        print(f"{name:44} {value:10.1f} {best['compiled'][name]:10.1f} {ratio:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
