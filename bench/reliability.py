"""The fault lab's table: one row is one `make` target at its full size, run and written down.

    python -m bench.reliability                    the rows there are, and which have a figure
    python -m bench.reliability bitflips           run one (or several) and write its row
    python -m bench.reliability bitflips N=500     the same with other make variables

A row's result is the last line that its command prints; a command that fails writes a row that says
so. Rows are replaced, never added twice, and stand in the order of `ROWS`.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "bench" / "results" / "reliability.md"
HEAD: Final = (
    "| measure | size | result | seed | duration | date | again |",
    "|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Row:
    """A measure, and the make target whose variables are its size."""

    name: str
    measure: str
    target: str
    size: str  # {N} is the variable N of the target

    @property
    def variables(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.target.split()[1:])


ROWS: Final = (
    Row("crashsim", "crash images, simulated disk", "crashsim IMAGES=1000000", "{IMAGES} images"),
    Row("iofaults", "every disk call fails", "iofaults SHARE=1", "1 of {SHARE} faults"),
    Row("killtest", "SIGKILL under load", "killtest N=1000 SEED=1", "{N} kills"),
    Row(
        "powercut-ext4",
        "power cuts, ext4, SYNC_FLUSH",
        "powercut N=1000 FS=ext4 FLUSH=SYNC_FLUSH SEED=1",
        "{N} cuts",
    ),
    Row(
        "powercut-ext4-async",
        "power cuts, ext4, ASYNC_FLUSH",
        "powercut N=200 FS=ext4 FLUSH=ASYNC_FLUSH SEED=1",
        "{N} cuts",
    ),
    Row(
        "powercut-xfs",
        "power cuts, xfs, SYNC_FLUSH",
        "powercut N=200 FS=xfs FLUSH=SYNC_FLUSH SEED=1",
        "{N} cuts",
    ),
    Row(
        "powercut-xfs-async",
        "power cuts, xfs, ASYNC_FLUSH",
        "powercut N=200 FS=xfs FLUSH=ASYNC_FLUSH SEED=1",
        "{N} cuts",
    ),
    Row(
        "blocks-ext4",
        "images of ext4 at any write, SYNC_FLUSH",
        "powercut-blocks N=1000 FS=ext4 SEED=1",
        "{N} images",
    ),
    Row(
        "blocks-xfs",
        "images of xfs at any write, SYNC_FLUSH",
        "powercut-blocks N=200 FS=xfs SEED=1",
        "{N} images",
    ),
    Row(
        "machines",
        "machines (QEMU) cut off, ext4, SYNC_FLUSH",
        "powercut-machine N=20 SEED=1",
        "{N} machines",
    ),
    Row("bitflips", "bit flips", "bitflips N=10000 SEED=1", "{N} in each kind of file"),
    Row("clockjumps", "clock jumps of 1 h and 10 years", "clockjumps N=100 SEED=1", "{N} jumps"),
    Row("memory", "full load in 512 MiB", "memory MINUTES=30", "{MINUTES} minutes"),
    Row("manyqueues", "open files and maps", "manyqueues QUEUES=20000", "{QUEUES} queues"),
    Row(
        "chaos",
        "all faults at once to a master and its slave; Java, Go, Python",
        "chaos-broker MINUTES=20 SEED=1",
        "{MINUTES} minutes",
    ),
    Row("fulldisk", "a disk of 64 MB filled up", "fulldisk N=50 SEED=1", "{N} fills"),
    Row("dead-device", "device away under load", "test-dead-device CUTS=6", "{CUTS} cuts each"),
    Row("flood", "clients that could stop others", "flood", "10,000 idle, 2,000 slow, 100 stalled"),
    Row("fuzz-decoders", "fuzz of the decoders", "fuzz-coverage FUZZ_SECONDS=3600", "coverage"),
    Row(
        "fuzz-deep",
        "fuzz of the compiled decoders",
        "fuzz-deep INPUTS=100000000",
        "{INPUTS} inputs",
    ),
    Row(
        "fuzz-live",
        "every request code, with data",
        "fuzz-live FRAMES=1000000 SEED=1",
        "{FRAMES} requests",
    ),
    Row("fuzz", "fuzz, all kinds", "fuzz FUZZ_SECONDS=3600", "{FUZZ_SECONDS} s each"),
    Row("hasim", "replicas, simulated", "hasim RUNS=5000", "{RUNS} runs"),
    Row("failover", "replicas in network namespaces", "chaos N=200", "{N} faults"),
    Row("planted-bugs", "planted bugs, each must be found", "planted-bugs", "all"),
    Row(
        "table-kills",
        "kills under kept tables",
        "test-table-kills KILLS=100 SEED=1",
        "{KILLS} kills",
    ),
    Row(
        "sink-kills",
        "kills under the exactly-once sink",
        "test-sink-kills KILLS=100 SEED=1",
        "{KILLS} kills",
    ),
    Row(
        "sink-failovers",
        "masters killed under the exactly-once sink",
        "test-sink-failovers KILLS=20 SEED=1",
        "{KILLS} kills",
    ),
    Row("reloads", "reloads under load", "reloads", "1,000 reloads"),
)


def chosen(names: Sequence[str]) -> Iterator[Row]:
    known = {row.name: row for row in ROWS}
    for name in names:
        if name not in known:
            raise SystemExit(f"there is no row {name!r}; there are: {', '.join(known)}")
        yield known[name]


def with_variables(row: Row, given: dict[str, str]) -> Row:
    words = [row.target.split()[0], *(f"{k}={v}" for k, v in (row.variables | given).items())]
    return Row(row.name, row.measure, " ".join(words), row.size)


def run(row: Row) -> tuple[str, float, int]:
    """The last line that the target prints, how long it took, and its exit code."""
    command = ["make", "--no-print-directory", *row.target.split()]
    began = time.monotonic()
    last = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.strip():
                last = line.strip()
    return last, time.monotonic() - began, process.returncode


def cells(row: Row, result: str, seconds: float, code: int) -> list[str]:
    size = re.sub(r"\{(\w+)\}", lambda found: _grouped(row.variables[found[1]]), row.size)
    text = result if code == 0 else f"**FAILED** ({code}): {result}"
    seed = row.variables.get("SEED", "–")
    date = time.strftime("%Y-%m-%d", time.gmtime())
    duration = f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
    return [
        each.replace("|", "\\|")
        for each in (row.measure, size, text, seed, duration, date, f"`make {row.target}`")
    ]


def _grouped(value: str) -> str:
    return f"{int(value):,}" if value.isdigit() else value


def write(new: Sequence[str], path: Path = RESULTS) -> None:
    """Puts one row into the table, in place of the one with its measure."""
    kept = {measure: line for measure, line in read(path)}
    kept[new[0]] = "| " + " | ".join(new) + " |"
    order = {row.measure: place for place, row in enumerate(ROWS)}
    lines = sorted(kept, key=lambda measure: order.get(measure, len(order)))
    path.write_text(
        "# The fault lab\n\n"
        "Rows are written by `make reliability ROW=<name>` from what its command prints, or put "
        "together from the runs that the row names; "
        "`make reliability` lists the names. docs/durability.md says what must hold.\n\n"
        f"Machine: {_machine()}.\n\n" + "\n".join((*HEAD, *(kept[each] for each in lines))) + "\n",
        encoding="utf-8",
    )


def read(path: Path = RESULTS) -> Iterator[tuple[str, str]]:
    """The measures that have a row, and the row."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and line not in HEAD:
            yield line.split(" | ")[0].removeprefix("| "), line


def _machine() -> str:
    return (
        f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}"
    )


def main(arguments: Sequence[str]) -> int:
    given = dict(word.split("=", 1) for word in arguments if "=" in word)
    rows = [with_variables(row, given) for row in chosen([w for w in arguments if "=" not in w])]
    if not rows:
        have = {measure for measure, _ in read()}
        for row in ROWS:
            print(f"{'  ' if row.measure in have else '- '}{row.name:20} make {row.target}")
        return 0
    failed = 0
    for row in rows:
        result, seconds, code = run(row)
        write(cells(row, result, seconds, code))
        failed |= code
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
