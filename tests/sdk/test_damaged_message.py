"""A message that its disk has damaged."""

import asyncio
import logging
from pathlib import Path

import pytest

from aerobee import ConsumerOptions
from aerobee.testing import EmbeddedBroker


async def test_a_damaged_message_is_left_out_and_said_and_the_others_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedBroker(tmp_path) as broker, broker.connect() as mq:
        for number in range(40):
            await mq.send("orders", b"number %02d." % number, order_key="one queue")
        log = tmp_path / "store/commitlog" / ("0" * 20)
        data = log.read_bytes()
        with log.open("r+b") as file:
            file.seek(data.index(b"number 17."))
            file.write(b"numbur")
        options = ConsumerOptions(commit_interval=0.1)
        async with mq.consumer("orders", group="g", options=options) as inbox:
            got: list[bytes] = []
            async with asyncio.timeout(30):
                while len(got) < 39:
                    message = await inbox.get()
                    got.append(bytes(message.body))
                    await message.ack()
    assert got == [b"number %02d." % number for number in range(40) if number != 17]
    said = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(said) == 1 and "is damaged and skipped" in said[0].getMessage()
