"""The `aerobee` command as a process of its own, for tests."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

AEROBEE = str(Path(sys.executable).with_name("aerobee"))


class Result(NamedTuple):
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The failure as --json tells it: the last line of stderr."""
        return json.loads(self.err.splitlines()[-1])


async def aerobee(*words: str, url: str = "", stdin: bytes = b"", code: int = 0) -> Result:
    """Run the command; the exit code must be the expected one, and nothing may be unexpected."""
    process = await asyncio.create_subprocess_exec(
        *(AEROBEE, *words, *(("--url", url) if url else ())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate(stdin)
    finally:
        if process.returncode is None:  # cancelled: its pipes would be another test's warning
            process.kill()
            await process.wait()
    told = f"{words}: exit code {process.returncode}\n{out.decode()}\n{err.decode()}"
    assert process.returncode == code, told
    assert b"Traceback" not in err, told
    return Result(out.decode(), err.decode())
