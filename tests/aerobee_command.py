"""The `aerobee` command as a process of its own, for tests."""

import asyncio
import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

AEROBEE = str(Path(sys.executable).with_name("aerobee"))
PIPE_HOLDS = 1 << 16
FORKED = "AEROBEE_FORKED"  # set by `make test`: daemons start without their imports


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
    described = f"{words}: exit code {found}\n{out}\n{err}"
    assert found == code, described
    assert "Traceback" not in err, described
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
    call = call_warm(words, reading, out_pipe, err_pipe, environment={**os.environ, **environment})
    all_of_it = asyncio.gather(
        asyncio.to_thread(call.wait),
        asyncio.to_thread(read_all, out),
        asyncio.to_thread(read_all, err),
    )
    try:
        code, said, complained = await asyncio.shield(all_of_it)
        return code, said, complained
    finally:
        if not all_of_it.done():  # cancelled: reader threads would block the loop's shutdown
            call.kill()
            await all_of_it


def read_all(pipe: int) -> bytes:
    with open(pipe, "rb") as file:
        return file.read()


class WarmCall:
    """A process that `warm_command.py` forked, with the methods of a `Popen` that tests use."""

    def __init__(self, answer: int, stdout: IO[str] | None = None) -> None:
        self.stdout = stdout
        self._answer = answer  # its process id, and later its exit code
        self._read = b""
        self._pid = 0
        self._code: int | None = None

    @property
    def pid(self) -> int:
        self._pid = self._pid or self._next_number(None)
        return self._pid

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        if self._code is None:
            assert self.pid
            self._code = self._next_number(timeout)
            os.close(self._answer)
        return self._code

    def _next_number(self, timeout: float | None) -> int:
        readable = select.poll()
        readable.register(self._answer, select.POLLIN)
        while b"\n" not in self._read:
            if not readable.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("aerobee", timeout or 0)
            data = os.read(self._answer, 100)
            assert data, "the process that forks commands has ended"
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return int(line)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def call_warm(
    words: Sequence[str | bytes],
    *streams: int,
    environment: Mapping[str, str] | None = None,
    stdout: IO[str] | None = None,
) -> WarmCall:
    """The command with these arguments; the standard streams are closed here. `stdout`: the other
    end of the second one."""
    call = {
        "words": [os.fsdecode(word) for word in words],
        "environment": dict(os.environ if environment is None else environment),
        "folder": os.getcwd(),
    }
    answer, theirs = os.pipe()
    socket.send_fds(warm(), [json.dumps(call).encode()], [*streams, theirs])
    for file in (*streams, theirs):
        os.close(file)
    return WarmCall(answer, stdout)


def start_daemon(
    program: Sequence[str],
    words: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str] | WarmCall:
    """A broker or name server, its stdout in a pipe and its stderr in `log`. `program`: what to
    run; if empty the installed `aerobee`, or where FORKED says so a fork that behaves the same."""
    with log.open("ab") as stderr:
        if not program and FORKED in os.environ:
            reading, writing = os.pipe()
            streams = os.open(os.devnull, os.O_RDONLY), writing, os.dup(stderr.fileno())
            return call_warm(words, *streams, environment=environment, stdout=os.fdopen(reading))
        return subprocess.Popen(
            [*(program or (AEROBEE,)), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
        )


@cache
def warm() -> socket.socket:
    """The socket to the process that forks for each call; started once per test process."""
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
