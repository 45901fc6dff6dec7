"""The inputs that are kept for the decoders: corpus.txt, one in base64 a line, the shortest first.

    python tests/fuzz/corpus.py [--seconds 600]     fuzz by coverage (atheris) and keep what is new

Kept is what reaches a line, after another one, that no shorter input reaches. `make test` runs all
of them again.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

CORPUS: Final = Path(__file__).with_name("corpus.txt")
LENGTH_MAX: Final = 4096  # of one input
SIZE_MAX: Final = 190_000  # of the file
ROOTS: Final = ("/aerobee/protocol/", "/aerobee/broker/fast/")  # what the inputs are for
MADE: Final = 400  # inputs of the mutating fuzz to begin with


def load() -> list[bytes]:
    lines = CORPUS.read_text().splitlines() if CORPUS.exists() else []
    return [b64decode(line) for line in lines]


def lines_of(inputs: Iterable[bytes], size_max: int) -> list[str]:
    """The shortest first, as many as a file of that size takes."""
    lines, size = [], 0
    for data in sorted(inputs, key=lambda data: (len(data), data)):
        line = b64encode(data).decode() + "\n"
        size += len(line)
        if size > size_max:
            break
        lines.append(line)
    return lines


def save(inputs: Iterable[bytes]) -> None:
    CORPUS.write_text("".join(lines_of(inputs, SIZE_MAX)))


class Steps:
    """Which line of our code came after which, while `check` runs."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int, int]] = set()

    def _call(self, frame: FrameType, _event: str, _value: Any) -> Any:
        name = frame.f_code.co_filename
        if not any(root in name for root in ROOTS):
            return None
        last = 0

        def line(frame: FrameType, _event: str, _value: Any) -> Any:
            nonlocal last
            self.seen.add((name, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line

    def of(self, data: bytes) -> set[tuple[str, int, int]]:
        from fuzz_decoder import check

        self.seen = set()
        sys.settrace(self._call)
        try:
            check(data)
        finally:
            sys.settrace(None)
        return self.seen


def minimised(inputs: Iterable[bytes]) -> list[bytes]:
    steps, kept = Steps(), []
    known: set[tuple[str, int, int]] = set()
    for data in sorted(set(inputs), key=len):
        if len(data) <= LENGTH_MAX and not (reached := steps.of(data)) <= known:
            known |= reached
            kept.append(data)
    return kept


def fuzz(folder: Path, seconds: int) -> tuple[int, int]:
    """In a process of its own, which ends itself: exit code and number of runs."""
    program = [sys.executable, __file__, "--child", str(seconds), str(folder)]
    runs = 0
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if not line.startswith("INFO: Instrumenting"):
                print(line, end="")
            if found := re.match(r"Done (\d+) runs", line):
                runs = int(found[1])
    return process.returncode, runs


def run_atheris(seconds: str, folder: str) -> None:
    import atheris

    with atheris.instrument_imports(include=["aerobee.protocol", "aerobee.broker.fast"]):
        import fuzz_decoder
    limits = [f"-max_total_time={seconds}", "-timeout=5", f"-max_len={LENGTH_MAX}"]
    found = f"-artifact_prefix={Path(folder).parent}/"
    atheris.Setup([sys.argv[0], *limits, found, folder], fuzz_decoder.check)
    atheris.Fuzz()


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        run_atheris(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    given = parser.parse_args()
    from mutate import damaged, frames

    rng = random.Random(1)
    inputs = [frames(rng) for _ in range(MADE)]
    inputs += [damaged(rng, data) for data in inputs]
    with tempfile.TemporaryDirectory(prefix="aerobee-fuzz-") as name:
        folder = Path(name, "corpus")
        folder.mkdir()
        for number, data in enumerate(minimised([*inputs, *load()])):
            (folder / str(number)).write_bytes(data)
        code, runs = fuzz(folder, given.seconds)
        for found in Path(name).glob("*-*"):
            print(f"FOUND {found.name}: {found.read_bytes().hex()}")
        kept = minimised(path.read_bytes() for path in folder.iterdir()) if code == 0 else load()
    save(kept)
    print(
        f"{runs:,} inputs by coverage in {given.seconds} s: {'a' if code else 'no'} finding; "
        f"{len(kept)} inputs are kept"
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
