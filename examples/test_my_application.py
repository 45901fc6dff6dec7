"""How to test an application with a real broker: `pytest examples/test_my_application.py`.

The fixture `aerobee_broker` is there once Aerobee is installed (with pytest-asyncio).
"""

import pytest

from aerobee.client.client import Client
from aerobee.testing import EmbeddedBroker


async def remind(mq: Client, text: str, hours: float) -> None:
    """The application."""
    await mq.send("reminders", text.encode(), delay=hours * 3600)


@pytest.mark.asyncio
async def test_a_reminder_comes_after_two_hours(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await remind(mq, "stretch your legs", hours=2)
        async with mq.consumer("reminders", group="app") as inbox:
            await aerobee_broker.advance(hours=2, seconds=1)  # takes no time
            message = await inbox.get()
            assert message.body == b"stretch your legs"
