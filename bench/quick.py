"""`make bench-quick`: has the hot path become slower? CPU per message beside the recorded figures.

The minimum of many short rounds is little disturbed by neighbours; dividing it by the CPU time of a
fixed piece of Python, measured in the same run, takes most of the machine's own speed out as well.

Each path, compiled and in Python (AEROBEE_PURE=1), has figures of its own.

    python -m bench.quick [--record]     exit 1 when a figure lost more than a quarter
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

from aerobee.broker import compiled
from bench import new_topic

RECORDED = Path(__file__).parent / "results" / "quick.json"
ALLOWED = 1.25
_ROW = re.compile(r"^((?:send|batch|pull)(?: +\w+)+?) +total +([\d.]+)", re.MULTILINE)


def yardstick() -> float:
    """CPU microseconds of a fixed mix of what a hot path does: pack, slice, join, checksum."""
    pack = struct.Struct(">iqi").pack
    body = bytes(1024)

    def mix() -> int:
        parts = [pack(number, number, number) + body[:64] for number in range(64)]
        return zlib.crc32(b"".join(parts))

    best = float("inf")
    for _ in range(200):
        # Many at once: on a busy virtual machine single ones now and then seem to take no time.
        began = time.process_time_ns()
        for _ in range(100):
            mix()
        best = min(best, (time.process_time_ns() - began) / 100_000)
    return best


def rows_of(output: str) -> dict[str, float]:
    """CPU microseconds per message by row, from what bench/hotpath.py printed."""
    rows = {" ".join(name.split()): float(us) for name, us in _ROW.findall(output)}
    if not rows:
        raise SystemExit(f"bench/hotpath.py printed no figures:\n{output}")
    return rows


def measure() -> dict[str, float]:
    """Each row of bench/hotpath.py and bench/new_topic.py, in yardsticks per message."""
    unit = yardstick()
    command = [sys.executable, str(Path(__file__).parent / "hotpath.py"), "--rounds", "60"]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180).stdout
    print(output)
    rows = rows_of(output) | {"send new topic": new_topic.measure()}
    print(f"send new topic    {rows['send new topic']:5.2f}   us per message, median of the topics")
    unit = min(unit, yardstick())
    print(f"yardstick: {unit:.2f} us")
    return {name: us / unit for name, us in rows.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="keep these figures to compare with")
    record = parser.parse_args().record
    figures = measure()
    path = "pure" if compiled.hot is None else "compiled"
    every = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if record or path not in every:
        RECORDED.parent.mkdir(exist_ok=True)
        every[path] = figures
        RECORDED.write_text(json.dumps(every, indent=1, sort_keys=True) + "\n")
        print(f"recorded in {RECORDED}, for the path: {path}")
        return 0
    recorded: dict[str, float] = every[path]
    slower = 0
    for name, value in figures.items():
        ratio = value / recorded.get(name, value)
        slower += ratio > ALLOWED
        print(f"{name:16} {ratio:5.2f} of the recorded{'   SLOWER' if ratio > ALLOWED else ''}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
