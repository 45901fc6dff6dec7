"""Builds and runs the load client of bench/load/load.c."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "load" / "load.c"
BINARY = Path(__file__).parent / "build" / "load"


def build() -> Path:
    """The binary, compiled anew when the source is newer."""
    if not BINARY.exists() or BINARY.stat().st_mtime < SOURCE.stat().st_mtime:
        BINARY.parent.mkdir(exist_ok=True)
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", BINARY, SOURCE], check=True)
    return BINARY


def load(mode: str, port: int, *, check: bool = True, **options: object) -> dict[str, Any]:
    """One run; raises when an answer was not a success, a message is missing or bodies differ."""
    words = [f"{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [build(), mode, str(port), *words], capture_output=True, text=True, timeout=600
    )
    if check and done.returncode != 0:
        what = f"load {mode} {' '.join(words)} ended with {done.returncode}"
        raise RuntimeError(f"{what}: {done.stdout}{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
