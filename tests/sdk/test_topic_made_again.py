"""A topic that is deleted and made again under its consumers."""

from pathlib import Path
from typing import Any

import pytest
from sdk.reading import every_queue_polls, fill, take
from waiting import until

from aerobee import ConsumerOptions, Message
from aerobee.testing import EmbeddedBroker


@pytest.mark.parametrize("start", ["first", "last"])
@pytest.mark.parametrize("how", [{}, {"orderly": True}, {"broadcast": True}])
async def test_a_topic_that_is_made_again_is_read_from_its_beginning(
    aerobee_broker: EmbeddedBroker, tmp_path: Path, how: dict[str, Any], start: Any
) -> None:
    options = ConsumerOptions(commit_interval=0.1, state_path=tmp_path / "offsets.json")
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.consumer("orders", group="g", start=start, options=options, **how) as inbox:
            await every_queue_polls(aerobee_broker, inbox)
            await fill(mq, "orders", 6)
            held = await take(inbox, 5)
            held.append(await inbox.get())
            [queue] = inbox._member.assignment.select(None)
            await mq.admin.delete_topic("orders")
            await until(lambda: queue.gone)
            await held[-1].ack()  # what it was is no offset of the new topic
            await mq.admin.create_topic("orders", queues=1)
            await fill(mq, "orders", 6)
            found: list[Message] = await take(inbox, 6, 30)
            assert [int(row.body) for row in found] == list(range(6))
        if "broadcast" not in how:
            assert [row.offset for row in await mq.admin.lag("g", "orders")] == [6]
