"""Fuzz of the compiled decoders to depth: libFuzzer around Python, guided by coverage of the C.

    python tests/fuzz/fuzz_deep.py [--runs 1000000] [--seconds 600]

The compiled part is built by clang with the fuzzer's coverage and the address sanitizer, into
build/fuzz; `deep_checks.check` says what must hold. Kept in corpus_deep.txt is what reaches a
branch of the C that no other kept input reaches; its first line counts the runs so far.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from base64 import b64decode
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import corpus

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
BUILT: Final = ROOT / "build" / "fuzz"
KEPT: Final = HERE / "corpus_deep.txt"
COPIED: Final = ("broker", "protocol", "src", "systemd", "conf", "client", "pipeline")
FLAGS: Final = "-O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address"
# No stack is kept of each allocation: a finding is run again to see more.
SANITIZER: Final = "detect_leaks=0:malloc_context_size=0:quarantine_size_mb=8"
LENGTH_MAX: Final = 2048
SIZE_MAX: Final = 150_000  # of the file of kept inputs
CLANG: Final = os.environ.get("CLANG", "clang")


def build() -> Path:
    """The program; it needs clang and its runtime (Debian: clang, libclang-rt-14-dev)."""
    if shutil.which(CLANG) is None:
        raise SystemExit(f"{CLANG} is not installed (Debian: clang libclang-rt-14-dev)")
    shutil.rmtree(BUILT, ignore_errors=True)
    BUILT.mkdir(parents=True)
    for name in COPIED:
        ignored = shutil.ignore_patterns("*.so*", "__pycache__")
        shutil.copytree(ROOT / name, BUILT / name, symlinks=True, ignore=ignored)
    for name in ("hatch_build.py", "pyproject.toml"):
        shutil.copy2(ROOT / name, BUILT)
    chosen = os.environ | {"CC": CLANG, "AEROBEE_CFLAGS": FLAGS}
    subprocess.run([sys.executable, "hatch_build.py"], cwd=BUILT, env=chosen, check=True)
    program = BUILT / "deep"
    paths, values = sysconfig.get_paths(), sysconfig.get_config_vars()
    library = values["LIBDIR"]
    subprocess.run(
        [
            *(CLANG, "-O1", "-g", "-fsanitize=fuzzer,address", "-rdynamic"),
            *(f"-I{paths['include']}", str(HERE / "deep.c"), "-o", str(program)),
            *(f"-L{library}", f"-Wl,-rpath,{library}", f"-lpython{values['LDVERSION']}"),
            *f"{values['LIBS']} {values['SYSLIBS']}".split(),
        ],
        check=True,
    )
    return program


def load() -> tuple[list[bytes], int]:
    """The kept inputs, and how many runs there were."""
    if not KEPT.exists():
        return [], 0
    first, *lines = KEPT.read_text().splitlines()
    return [b64decode(line) for line in lines], int(first.removeprefix("# runs: "))


def save(inputs: Iterable[bytes], runs: int) -> int:
    lines = corpus.lines_of(inputs, SIZE_MAX)
    KEPT.write_text("".join([f"# runs: {runs}\n", *lines]))
    return len(lines)


def first_inputs() -> list[bytes]:
    """What is kept, sound inputs, and what is kept for the decoders in Python."""
    from deep_checks import seeds

    others = [bytes([kind]) + data for data in corpus.load() for kind in (0, 1, 3)]
    return [*load()[0], *seeds(), *(data for data in others if len(data) <= LENGTH_MAX)]


def call(program: Path, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join((str(BUILT / "src"), str(HERE)))
    chosen = {
        "FUZZ_PYTHON": sys.executable,
        "PYTHONPATH": path,
        "PYTHONMALLOC": "pymalloc",
        "ASAN_OPTIONS": SANITIZER,
    }
    return subprocess.Popen(
        [str(program), *arguments], stderr=subprocess.PIPE, text=True, env=os.environ | chosen
    )


def fuzz(program: Path, folder: Path, runs: int, seconds: int) -> tuple[int, int]:
    """Exit code, and how many runs there were."""
    limits = [f"-runs={runs}", f"-max_total_time={seconds}", f"-max_len={LENGTH_MAX}"]
    limits.append("-timeout=120")  # by the clock: a busy machine may hold it up
    found = f"-artifact_prefix={folder.parent}/found-"
    others = ("-reload=0", "-detect_leaks=0", "-rss_limit_mb=4096")
    done = 0
    with call(program, *limits, *others, found, str(folder)) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if count := re.match(r"#(\d+)|Done (\d+) runs", line):
                done = int(count[1] or count[2])
            if not re.match(r"#\d+\s+(NEW|REDUCE)", line):
                print(line, end="", flush=True)
    return process.returncode, done


def fewest(program: Path, folder: Path) -> list[bytes]:
    """Some of the inputs that reach all branches."""
    merged = folder.with_name("merged")
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir()
    with call(program, "-merge=1", "-use_counters=0", str(merged), str(folder)) as process:
        process.communicate()
    return [path.read_bytes() for path in merged.iterdir()]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=0, help="at most; 0: as long as it takes")
    given = parser.parse_args(arguments)
    program = build()
    folder = BUILT / "inputs"
    folder.mkdir()
    for number, data in enumerate(first_inputs()):
        (folder / str(number)).write_bytes(data)
    began = time.monotonic()
    code, runs = fuzz(program, folder, given.runs, given.seconds)
    seconds = time.monotonic() - began
    found = sorted(BUILT.glob("found-*"))
    for path in found:
        print(f"FOUND {path.name}: {path.read_bytes().hex()}")
    before, total = load()
    kept = save(fewest(program, folder) if code == 0 else before, total + runs)
    print(
        f"{runs:,} inputs by coverage of the compiled decoders in {seconds:.0f} s, "
        f"{runs / seconds:,.0f} a second, {total + runs:,} in all: "
        f"{len(found) or 'no'} finding{'s' if len(found) > 1 else ''}; {kept} inputs are kept"
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
