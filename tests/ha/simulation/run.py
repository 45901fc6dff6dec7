"""As many runs as asked, on all processors: `python -m ha.simulation.run RUNS [FIRST_SEED]`.

Each seed is run twice: with a person who promotes, and with an arbiter. A violation prints its
seed, which alone repeats it: `python -m ha.simulation.run 1 SEED`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from crash.run import quiet

from ha.simulation.failover_world import run_failover_seed
from ha.simulation.world import Report, run_seed

SHARE = 10  # seeds of one task


def run_share(seeds: Sequence[int]) -> tuple[Report, list[str]]:
    total, violations = Report(), []
    for seed in seeds:
        for run in (run_seed, run_failover_seed):
            try:
                total.add(run(seed))
            except Exception as error:
                violations.append(f"{type(error).__name__}: {error}")
    return total, violations


def main(arguments: Sequence[str]) -> int:
    runs = int(arguments[0]) if arguments else 200
    first = int(arguments[1]) if len(arguments) > 1 else 0
    started = time.monotonic()
    last = first + runs
    shares = [range(seed, min(seed + SHARE, last)) for seed in range(first, last, SHARE)]
    total, found = Report(), 0
    processes = min(os.cpu_count() or 1, 8)
    with multiprocessing.get_context("spawn").Pool(processes, quiet) as pool:
        for report, violations in pool.imap_unordered(run_share, shares):
            total.add(report)
            found += len(violations)
            for text in violations:
                print(f"VIOLATION {text}", flush=True)
    print(
        f"{total.runs} runs: {total.acked} messages acknowledged, {total.promotions} promotions, "
        f"{total.crashes} crashes, {total.cuts} logs cut, {total.emptied} begun anew: "
        f"{found} violations; {time.monotonic() - started:.0f} s on {processes} processes"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
