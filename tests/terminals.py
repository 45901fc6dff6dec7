"""A command at a terminal of its own: what it shows and what is typed."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Sequence
from pathlib import Path

from aerobee_command import call_warm


async def typed(
    words: Sequence[str],
    *,
    until: str = "",
    answer: str = "",
    columns: int = 80,
    into: Path | None = None,
) -> tuple[int, str]:
    """Run `aerobee`; once `until` has been shown, type the answer. Gives exit code and all it
    showed. Its stdout may go into a file."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    out = os.dup(slave) if into is None else os.open(into, os.O_WRONLY | os.O_CREAT)
    streams = (slave, out, os.dup(slave))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    call = call_warm(words, *streams, environment=environment)
    shown = bytearray()
    loop = asyncio.get_running_loop()
    late = loop.call_later(100, call.kill)
    while True:
        try:
            piece = await loop.run_in_executor(None, os.read, master, 1 << 16)
        except OSError:  # EIO: the other side is closed
            break
        shown += piece
        if answer and until.encode() in shown:
            os.write(master, answer.encode())
            answer = ""
    os.close(master)
    code = await asyncio.to_thread(call.wait)
    late.cancel()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())  # without colours
    return code, text.replace("\r\n", "\n")
