"""The command that tests fork instead of starting it does what the installed one does."""

import asyncio

import pytest
from aerobee_command import AEROBEE, ended

NOBODY = "mq://127.0.0.1:1"


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("config", "flush", "--json"),
        ("topic", "lisst"),
        ("topic", "list", "--json", "--url", NOBODY),
        ("send", "orders", "-", "--url", NOBODY),
        ("send", b"\xff", "x", "--url", NOBODY),
    ],
)
async def test_a_forked_command_ends_and_says_what_the_installed_one_does(
    words: tuple[str | bytes, ...],
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(AEROBEE, *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(b"from a pipe")
    assert await ended(*words, stdin=b"from a pipe") == (process.returncode, out, err)
