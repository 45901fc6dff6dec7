"""Load clients that stay up for a whole session: a command per line in, one JSON object out.

    send topic=T n=100000 conns=4 window=32 size=1024   ->   {"n": 100000, "per_s": 51234.0, ...}

A driver in Java or Go thus warms up once, and each row is one command. Every driver counts the
acknowledgements that were no success as `bad`, and knows `send`, `pull` and, where the C load
client cannot do it, `count` and `first`.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

BUILD = Path(__file__).parent / "build"
JAVA_SOURCES = Path(__file__).parent / "java"


class LineDriver:
    """One such process; its complaints go to `log`."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> LineDriver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, mode: str, **options: object) -> dict[str, Any]:
        """One row; raises when an acknowledgement was no success or the driver failed."""
        line = " ".join([mode, *(f"{name}={value}" for name, value in options.items())])
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # it ended; then there is no answer either
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            log = self._log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"the driver ended during {line!r}; it said:\n{log}")
        result: dict[str, Any] = json.loads(answer)
        if result["bad"] or result["error"]:
            raise RuntimeError(f"{line!r}: {result['bad']} bad answers; first: {result['error']}")
        return result

    def close(self) -> None:
        """Ends the process, which has nothing to keep."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()


def compile_java(target: str, class_path: str, *sources: str) -> str:
    """The class path with these sources of bench/java, compiled again when one is newer."""
    classes = BUILD / "java" / target
    paths = [JAVA_SOURCES / source for source in sources]
    stamp = classes / ".built"
    newest = max(path.stat().st_mtime for path in paths)
    if not stamp.exists() or stamp.stat().st_mtime < newest:
        classes.mkdir(parents=True, exist_ok=True)
        command = ["javac", "-nowarn", "-XDsuppressNotes", "-d", str(classes), "-cp", class_path]
        subprocess.run([*command, *map(str, paths)], check=True)
        stamp.touch()
    return f"{classes}:{class_path}"
