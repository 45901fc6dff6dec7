"""`make bench-ab BASE=<commit>`: CPU per message of this tree beside that of another commit.

Both run bench/hotpath.py of their own in turns; what counts is the least of all pairs, which
neighbours disturb little. Exit 1 when a row of this tree costs more than the limit allows.

    python -m bench.ab BASE [--pairs 9] [--limit 1.05]
    AEROBEE_PURE=1 python -m bench.ab BASE      the path in Python, of both

A tree that has a compiled part and does not take it is refused, unless AEROBEE_PURE=1 asks for it.
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
IS_PURE = os.environ.get("AEROBEE_PURE", "") not in ("", "0")
WHICH = """
try:
    from aerobee.broker.compiled import PATH
except ImportError:
    PATH = "pure Python, it has no other"
print(PATH)
"""


def check_out(base: str, folder: str) -> Path:
    """The files of a commit, without git's own, and its compiled part."""
    archive = subprocess.run(
        ["git", "archive", base], cwd=HERE, check=True, capture_output=True, timeout=60
    ).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True, timeout=60)
    build = Path(folder, "hatch_build.py")
    # The installed module is of this tree's sources, which the base refuses.
    if build.exists() and not IS_PURE:
        subprocess.run([sys.executable, build], cwd=folder, check=True, timeout=600)
    return Path(folder)


def figures(tree: Path, rounds: int) -> dict[str, float]:
    """One run of a tree's own hot path."""
    return rows_of(run(tree, str(tree / "bench" / "hotpath.py"), "--rounds", str(rounds)))


def path_of(tree: Path) -> str:
    """Which path the tree's broker takes."""
    path = run(tree, "-c", WHICH).strip()
    if (tree / "broker" / "compiled").is_dir() and path != "compiled" and not IS_PURE:
        raise SystemExit(f"{tree} takes: {path}. `make` builds it; AEROBEE_PURE=1 compares without")
    return path


def run(tree: Path, *words: str) -> str:
    """What Python prints with a tree's sources before the installed ones."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    ).stdout


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
    path = path_of(HERE)
    with tempfile.TemporaryDirectory() as folder:
        sides = [(check_out(arguments.base, folder), base), (HERE, here)]
        base_path = path_of(sides[0][0])
        for pair in range(arguments.pairs):
            for tree, least in sides if pair % 2 == 0 else reversed(sides):
                keep_least(least, figures(tree, arguments.rounds))
            print(f"pair {pair + 1} of {arguments.pairs} done", file=sys.stderr)
    slower = 0
    print(f"us of CPU per message, least of {arguments.pairs}; base is {arguments.base}")
    print(f"paths: {base_path} -> {path}")
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
