"""A command at a terminal of its own: what it shows and what somebody types."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Sequence


async def typed(
    command: Sequence[str], *, until: str = "", answer: str = "", columns: int = 80
) -> tuple[int, str]:
    """Run it; once `until` has been shown, type the answer. Gives exit code and all it showed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *command,
        **{"stdin": slave, "stdout": slave, "stderr": slave},
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns)},
    )
    os.close(slave)
    shown = bytearray()
    loop = asyncio.get_running_loop()
    loop.call_later(20, lambda: process.returncode is None and process.kill())
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
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())  # without colours
    return await process.wait(), text.replace("\r\n", "\n")
