"""The task that reads one queue: pull, hand over, wait for room."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aerobee.client.consuming.group_member import GroupMember
from aerobee.client.consuming.process_queue import ProcessQueue
from aerobee.client.consuming.pulling import PullStatus, pull
from aerobee.client.errors import AerobeeError, BrokerError, Closed, TopicNotFound
from aerobee.client.transport.remoting import log_level
from aerobee.client.transport.routes import MASTER

log = logging.getLogger("aerobee.consumer")

SUSPEND_SECONDS: Final = 15.0
PAUSE_MAX: Final = 5.0
# Messages finished out of order are tracked in memory, and redelivered after a restart.
SPAN_MAX: Final = 65536
SPAN_SECONDS: Final = 5.0
SUBSCRIPTION_CODES: Final = frozenset((24, 25, 27, 28))  # fixed by the next heartbeat


async def read_queue(consumer: GroupMember, process_queue: ProcessQueue) -> None:
    """Runs until cancelled, when the queue is revoked."""
    pause = 0.1
    broker_number = MASTER
    queue = process_queue.queue
    core = consumer.core
    subscription = consumer.subscription(queue.topic)
    while True:
        await process_queue.running.wait()
        await consumer.room.wait()
        if process_queue.span >= SPAN_MAX:
            await _wait_for_the_oldest(consumer, process_queue)
            continue
        commits = not (consumer.broadcast or process_queue.gone)
        try:
            pulled = await pull(
                core.remoting,
                core.routes.address(queue.broker_name, broker_number),
                queue,
                process_queue.next_offset,
                group=consumer.group,
                subscription=subscription,
                count=consumer.options.pull_count,
                suspend=0.0 if process_queue.gone else SUSPEND_SECONDS,
                commit_offset=process_queue.commit_offset if commits else 0,
            )
            if process_queue.gone:
                return await consumer.begin_anew(process_queue)
        except Closed:
            return
        except AerobeeError as error:
            if isinstance(error, BrokerError) and error.code in SUBSCRIPTION_CODES:
                await core.presence.beat()
            else:
                log.log(log_level(error), "%s; next try in %.1f s", error, pause)
                core.routes.refresh_soon(queue.topic)  # there may be a new master
            if isinstance(error, TopicNotFound) and broker_number == MASTER:
                process_queue.gone = True  # a slave may not know the topic yet
            broker_number = MASTER
            await asyncio.sleep(pause)
            pause = min(PAUSE_MAX, pause * 2)
            continue
        except Exception:
            log.exception("the answer to a pull of %s cannot be used", queue)
            await asyncio.sleep(PAUSE_MAX)
            continue
        pause = 0.1
        if not process_queue.running.is_set():
            continue  # paused while the pull was held: pulled again on resume
        broker_number = pulled.suggested_broker
        if pulled.status is PullStatus.OFFSET_MOVED:
            log.warning(
                "group %s asked %s for offset %d, outside of %d..%d; continues from %d",
                *(consumer.group, queue, process_queue.next_offset),
                *(pulled.min_offset, pulled.max_offset, pulled.next_offset),
            )
            consumer.move(process_queue, pulled.next_offset)
            return
        process_queue.next_offset = pulled.next_offset
        process_queue.max_offset = pulled.max_offset
        if pulled.messages:
            consumer.offer(process_queue, pulled.messages)


async def _wait_for_the_oldest(consumer: GroupMember, process_queue: ProcessQueue) -> None:
    log.warning(
        "group %s pauses %s: offset %d is neither acked nor retried, %d messages later",
        *(consumer.group, process_queue.queue, process_queue.commit_offset, process_queue.span),
    )
    await asyncio.sleep(SPAN_SECONDS)
