"""`make bench-compare`: Aerobee beside Apache RocketMQ on this machine, driven by the same clients.

Brokers run one after the other, never at once, in interleaved pairs; the table shows medians with
ranges and the ratio to Apache, as text, JSON and a PNG chart. Rows are driven by bench/load/load.c,
those called "Java client" by Apache's own client.

    python -m bench.compare [--pairs 5] [--full] [--quick] [--without-5.5] [--out bench/results]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

from bench.brokers import AEROBEE, APACHE_4, APACHE_5, BrokerProcess
from bench.load_client import JAVA_CLIENT
from bench.machine import describe_machine
from bench.process import need
from bench.rows import (
    FULL_SCALE,
    QUICK_SCALE,
    SESSIONS,
    killed_store,
    restart_session,
)
from bench.session import Figures
from bench.tables import Runs, median, table

# Acceptance: figure, the ratio to Apache 4.9 that is wanted, and which way is better.
GOALS: dict[str, tuple[str, float]] = {
    "send 4x32, 1 KB: msg/s": (">=", 5.0),
    "send 4x32, 100 B, ROCKETMQ header: msg/s": (">=", 4.0),
    "send 1x256, 1 KB: msg/s": (">=", 5.0),
    "send batches of 32, 1 KB: msg/s": (">=", 3.0),
    "send 1x1, 1 KB: p50 us": ("<=", 0.9),
    "send 1x1, 1 KB: p99 us": ("<=", 0.6),
    "send 1x1, 1 KB, client polls: p50 us": ("<=", 0.8),
    "send 1x1, 1 KB, client polls: p99 us": ("<=", 0.5),
    "send to receipt: p50 us": ("<=", 0.3),
    "pull 32, 1 KB: msg/s": (">=", 2.0),
    "pull 32, 1 KB, client polls: msg/s": (">=", 3.0),
    "SYNC_FLUSH 8x32, 1 KB: msg/s": (">=", 4.0),
    "SYNC_FLUSH 1x32, 1 KB: msg/s": (">=", 3.0),
    "SYNC_FLUSH 1x1, 1 KB: msg/s": (">=", 2.0),
    "memory after the run: anonymous MB": ("<=", 0.1),
    "start to first send: ms": ("<=", 0.3),
    "restart after kill -9: ms": ("<=", 0.5),
}


def measure(kinds: list[str], pairs: int, scale_name: str, *, full: bool, work: Path) -> Runs:
    scale = QUICK_SCALE if scale_name == "quick" else FULL_SCALE
    runs: Runs = {kind: {} for kind in kinds}

    def add(kind: str, figures: Figures) -> None:
        for name, value in figures.items():
            runs[kind].setdefault(name, []).append(value)

    for pair in range(pairs):
        order = kinds if pair % 2 == 0 else kinds[::-1]
        for name, session in SESSIONS.items():
            for kind in order:
                print(f"pair {pair + 1} of {pairs}: {name}, {kind}", flush=True)
                add(kind, session(kind, work / kind, scale, full=full))
    store = killed_store(work / "killed", scale)
    for pair in range(pairs):
        for kind in kinds if pair % 2 == 0 else kinds[::-1]:
            print(f"pair {pair + 1} of {pairs}: restart, {kind}", flush=True)
            add(kind, restart_session(kind, work / kind, store))
    return runs


def comparison(runs: Runs, kinds: list[str]) -> str:
    """The table with the ratio to each Apache and whether the goal is met."""

    def ratio(peer: str, name: str) -> str:
        return f"{median(runs, AEROBEE, name) / (median(runs, peer, name) or 1):.2f}"

    columns = {f"ratio to {peer}": partial(ratio, peer) for peer in kinds if peer != AEROBEE}
    return table(runs, kinds, columns | {f"goal (to {APACHE_4})": partial(_verdict, runs)})


def _verdict(runs: Runs, name: str) -> str:
    if name not in GOALS:
        return ""
    sign, wanted = GOALS[name]
    ratio = median(runs, AEROBEE, name) / (median(runs, APACHE_4, name) or 1)
    met = ratio >= wanted if sign == ">=" else ratio <= wanted
    return f"{sign} {wanted:g}: {'met' if met else 'MISSED'}"


def chart(runs: Runs, path: Path) -> None:
    """How far each goal's figure is from Apache 4.9's: a bar per goal, in favour to the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in GOALS if name in runs[AEROBEE]]
    gains = []
    for name in names:
        ratio = median(runs, AEROBEE, name) / median(runs, APACHE_4, name)
        gains.append(ratio if GOALS[name][0] == ">=" else 1 / ratio)
    wanted = [goal if sign == ">=" else 1 / goal for sign, goal in (GOALS[name] for name in names)]
    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(names) + 1.5))
    rows = range(len(names))
    axes.barh(rows, gains, color="#2b7a78")
    axes.plot(wanted, rows, "|", color="black", markersize=18, label="goal")
    axes.axvline(1, color="#b00020", label="Apache RocketMQ 4.9")
    axes.set_xscale("log")
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.set_xlabel("times better than Apache RocketMQ 4.9 on the same machine (log scale)")
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="the whole matrix")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the program out")
    parser.add_argument("--without-5.5", action="store_true", dest="without_five")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args()
    need("java=openjdk-17-jdk-headless", "javac=openjdk-17-jdk-headless", "mvn=maven", "cc=gcc")
    kinds = [AEROBEE, APACHE_4] + ([] if options.without_five else [APACHE_5])
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as work:
        about = [BrokerProcess(kind, Path(work)).describe() for kind in kinds]
        runs = measure(
            kinds,
            options.pairs,
            "quick" if options.quick else "full",
            full=options.full,
            work=Path(work),
        )
    machine = describe_machine()
    about.append(f'"Java client": rocketmq-client {JAVA_CLIENT}')
    text = comparison(runs, kinds)
    print(f"\n{machine}\n{'; '.join(about)}\n{options.pairs} interleaved pairs\n\n{text}")
    options.out.mkdir(parents=True, exist_ok=True)
    name = "compare" + "-full" * options.full + "-quick" * options.quick
    result = {"machine": machine, "brokers": about, "pairs": options.pairs, "runs": runs}
    (options.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / f"{name}.md").write_text(f"{machine}. {'; '.join(about)}.\n\n{text}\n")
    chart(runs, options.out / f"{name}.png")
    print(f"\nwritten: {options.out}/{name}.json, .md and .png")


if __name__ == "__main__":
    main()
