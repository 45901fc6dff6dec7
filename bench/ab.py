"""`make bench-ab BASE=<commit>`: CPU per message of this tree beside that of another commit.

Both run bench/hotpath.py of their own in turns; what counts is the least of all pairs, which
neighbours disturb little. Exit 1 when a row of this tree costs more than the limit allows.

    python -m bench.ab BASE [--pairs 9] [--limit 1.05]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.quick import rows_of

HERE = Path(__file__).parents[1]


def check_out(base: str, folder: str) -> Path:
    """The files of a commit, without git's own, and its compiled part."""
    archive = subprocess.run(
        ["git", "archive", base], cwd=HERE, check=True, capture_output=True, timeout=60
    ).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True, timeout=60)
    build = Path(folder, "hatch_build.py")
    if build.exists():  # the installed module is of this tree's sources, which the base refuses
        subprocess.run([sys.executable, build], cwd=folder, check=True, timeout=600)
    return Path(folder)


def figures(tree: Path, rounds: int) -> dict[str, float]:
    """One run of a tree's own hot path, its sources before the installed ones."""
    output = subprocess.run(
        [sys.executable, str(tree / "bench" / "hotpath.py"), "--rounds", str(rounds)],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    ).stdout
    return rows_of(output)


def keep_least(least: dict[str, float], run: dict[str, float]) -> None:
    for name, us in run.items():
        least[name] = min(us, least.get(name, us))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=30, help="of each row, in each run")
    parser.add_argument("--limit", type=float, default=1.05, help="largest ratio that is allowed")
    arguments = parser.parse_args()
    base: dict[str, float] = {}
    here: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        sides = [(check_out(arguments.base, folder), base), (HERE, here)]
        for pair in range(arguments.pairs):
            for tree, least in sides if pair % 2 == 0 else reversed(sides):
                keep_least(least, figures(tree, arguments.rounds))
            print(f"pair {pair + 1} of {arguments.pairs} done", file=sys.stderr)
    slower = 0
    print(f"us of CPU per message, least of {arguments.pairs}; base is {arguments.base}")
    for name in here:
        if name not in base:
            print(f"{name:20} {here[name]:6.2f}   the base has no such row")
            continue
        ratio = here[name] / base[name]
        slower += ratio > arguments.limit
        mark = "   SLOWER" if ratio > arguments.limit else ""
        print(f"{name:20} {base[name]:6.2f} -> {here[name]:6.2f}   {ratio:5.3f}{mark}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
