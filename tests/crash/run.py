"""As many crash images as asked, on all processors: `python -m crash.run IMAGES [FIRST_SEED]`.

Each seed is a chain of lives of its own, so the seeds are dealt out to processes. A violation
prints its seed, which alone repeats it: `python -m crash.run 1 SEED`.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

import structlog
from crash.delays import run_delay_seed
from crash.simulator import Report, run_every_kill, run_seed
from crash.timer_lives import run_timer_seed
from crash.transaction_lives import run_transaction_seed

SHARE = 8  # seeds of one task


def run_share(seeds: Sequence[int]) -> tuple[Report, list[str]]:
    """What a few seeds did, and the violations they met."""
    total, violations = Report(), []
    for seed in seeds:
        try:
            report = run_seed(seed)
            report.add(run_delay_seed(seed))
            report.add(run_timer_seed(seed))
            report.add(run_transaction_seed(seed))
            if seed % SHARE == 0:
                report.add(run_every_kill(seed))
        except Exception as error:
            violations.append(f"{type(error).__name__}: {error}")
            continue
        total.add(report)
    return total, violations


def quiet() -> None:
    """No log: a recovery's log lines would be most of the time."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def main(arguments: Sequence[str]) -> int:
    wanted = int(arguments[0]) if arguments else 2000
    first = int(arguments[1]) if len(arguments) > 1 else 0
    started = time.monotonic()
    total = Report()
    seeds = 0
    violations: list[str] = []
    shares = (range(start, start + SHARE) for start in itertools.count(first, SHARE))
    processes = min(os.cpu_count() or 1, 8)
    with multiprocessing.get_context("spawn").Pool(processes, quiet) as pool:
        while total.images < wanted:
            batch = list(itertools.islice(shares, 4 * processes))
            for done, found in pool.imap_unordered(run_share, batch):
                seeds += SHARE
                total.add(done)
                violations += found
                for text in found:
                    print(f"VIOLATION {text}", flush=True)
            print(f"{total.images} images, {seeds} seeds", file=sys.stderr, flush=True)
    print(
        f"{total.images} images of {seeds} seeds ({total.lives} lives; {total.recovery_cuts} "
        f"starts cut off, {total.start_kills} killed): {len(violations)} violations; "
        f"{time.monotonic() - started:.0f} s on {processes} processes"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
