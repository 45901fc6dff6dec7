"""The `aerobee` command as a process of its own, for tests."""

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

AEROBEE = str(Path(sys.executable).with_name("aerobee"))
PIPE_HOLDS = 1 << 16


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


async def aerobee(*words: str | bytes, url: str = "", stdin: bytes = b"", code: int = 0) -> Result:
    """Run the command; the exit code must be the expected one, and nothing may be unexpected."""
    found, *said = await ended(*words, *(("--url", url) if url else ()), stdin=stdin)
    out, err = (each.decode() for each in said)
    told = f"{words}: exit code {found}\n{out}\n{err}"
    assert found == code, told
    assert "Traceback" not in err, told
    return Result(out, err)


async def ended(
    *words: str | bytes, stdin: bytes = b"", **environment: str
) -> tuple[int, bytes, bytes]:
    """Run the command to its end: its exit code, and what it wrote to stdout and stderr."""
    assert len(stdin) <= PIPE_HOLDS
    reading, writing = os.pipe()
    os.write(writing, stdin)
    os.close(writing)
    out, out_pipe = os.pipe()
    err, err_pipe = os.pipe()
    call = call_warm(words, reading, out_pipe, err_pipe, **environment)
    all_of_it = asyncio.gather(
        asyncio.to_thread(call.wait),
        asyncio.to_thread(read_all, out),
        asyncio.to_thread(read_all, err),
    )
    try:
        code, said, complained = await asyncio.shield(all_of_it)
        return code, said, complained
    finally:
        if not all_of_it.done():  # cancelled: threads that read would hold up the end of the loop
            call.kill()
            await all_of_it


def read_all(pipe: int) -> bytes:
    with open(pipe, "rb") as file:
        return file.read()


class WarmCall:
    """A process that `warm_command.py` forked."""

    def __init__(self, answer: int) -> None:
        self._answer = open(answer, "rb")  # noqa: SIM115
        self._pid = 0

    @property
    def pid(self) -> int:
        self._pid = self._pid or int(self._answer.readline())
        return self._pid

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self.pid
        with self._answer:
            return int(self._answer.readline())

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def call_warm(words: Sequence[str | bytes], *streams: int, **environment: str) -> WarmCall:
    """The command with these arguments; the standard streams are closed here."""
    call = {
        "words": [os.fsdecode(word) for word in words],
        "environment": {**os.environ, **environment},
        "folder": os.getcwd(),
    }
    answer, theirs = os.pipe()
    socket.send_fds(warm(), [json.dumps(call).encode()], [*streams, theirs])
    for file in (*streams, theirs):
        os.close(file)
    return WarmCall(answer)


@cache
def warm() -> socket.socket:
    """To the process that forks for each call: started once for all tests of this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = Path(__file__).with_name("warm_command.py")
    process = subprocess.Popen(
        [sys.executable, program, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a fork has one thread
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
