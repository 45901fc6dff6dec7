"""Which queues a consumer reads: joins the group, rebalances, moves offsets, commits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from aerobee.client.background import every
from aerobee.client.consuming import order_locks, positions
from aerobee.client.consuming.group_member import GroupMember
from aerobee.client.consuming.group_queries import check_sql, members_of, probe
from aerobee.client.consuming.offsets import (
    BrokerOffsets,
    LocalOffsets,
    Offsets,
    default_offsets_path,
)
from aerobee.client.consuming.options import Start
from aerobee.client.consuming.process_queue import ProcessQueue
from aerobee.client.consuming.pull_loop import read_queue
from aerobee.client.consuming.rebalance import strategy_of
from aerobee.client.consuming.subscription import Subscription, subscribe
from aerobee.client.core import Core
from aerobee.client.errors import AerobeeError, Misuse, NoRoute
from aerobee.client.message import timestamp_ms
from aerobee.client.transport.remoting import log_level
from aerobee.client.transport.routes import Route
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.names import RETRY_PREFIX, TEMPLATE_TOPIC

log = logging.getLogger("aerobee.consumer")

REBALANCE_SECONDS: Final = 20.0
INCOMPLETE_SECONDS: Final = 1.0  # to the next try while a topic has no route or a lock is missing


class Assignment:
    """The queues of one member of a group."""

    def __init__(
        self, consumer: GroupMember, subscriptions: list[Subscription], start: Start | None
    ) -> None:
        self.started_ms = time.time_ns() // 1_000_000
        self._consumer = consumer
        self._core: Core = consumer.core
        self._start = ("last" if consumer.broadcast else "first") if start is None else start
        self._retry_topic = RETRY_PREFIX + consumer.group
        self._strategy = strategy_of(consumer.options.strategy)
        self.subscriptions = {row.topic: row for row in subscriptions}
        if not consumer.broadcast:
            self.subscriptions[self._retry_topic] = subscribe(
                self._retry_topic, None, None, self.started_ms
            )
        self._offsets = self._offsets_store()
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._old_queues: set[MessageQueue] = set()  # those that existed at the start
        self._paused: set[MessageQueue] = set()  # also those that were given up since
        self._missed: set[str] = set()  # missing topics that were logged
        self._wanted = asyncio.Event()
        self._incomplete = False
        self._reading = False
        self._tasks: list[asyncio.Task[None]] = []

    def _offsets_store(self) -> Offsets:
        consumer, core = self._consumer, self._core
        if not consumer.broadcast:
            return BrokerOffsets(core.remoting, core.routes, consumer.group)
        default = default_offsets_path(core.routes.name_servers, consumer.group)
        return LocalOffsets(Path(consumer.options.state_path or default))

    # -- life

    async def start(self) -> None:
        """Join the group and take the first queues; their starting offsets are fixed then."""
        self._reading = True
        for topic in self.subscriptions:
            route = await self._route(topic)
            if route is not None:
                self._old_queues.update(route.read_queues())
        if not self._core.routes.broker_addresses:
            await self._core.routes.refresh(TEMPLATE_TOPIC)  # to know the brokers at least
        await check_sql(self._core, self._consumer.group, self.subscriptions.values())
        await self._core.presence.join_consumer(self._consumer.group, self.describe)
        await self._rebalance(first=True)
        self._tasks = [
            asyncio.create_task(self._keep_balanced(), name=f"rebalance {self._consumer.group}"),
            asyncio.create_task(
                every(self._consumer.options.commit_interval, self._commit_all),
                name=f"commit {self._consumer.group}",
            ),
        ]
        if self._consumer.locks_queues:
            renewing = every(order_locks.RENEW_SECONDS, self._renew_locks)
            name = f"locks {self._consumer.group}"
            self._tasks.append(asyncio.create_task(renewing, name=name))

    def stop_reading(self) -> None:
        self._reading = False
        for task in self._tasks:
            task.cancel()
        for process_queue in self._queues.values():
            if process_queue.reader is not None:
                process_queue.reader.cancel()

    async def stop(self) -> None:
        """Commit, give up the queues and leave the group."""
        readers = [row.reader for row in self._queues.values() if row.reader is not None]
        if self._tasks or readers:
            await asyncio.wait([*self._tasks, *readers])
        try:
            await self.commit(confirm=True)
        finally:
            if self._consumer.locks_queues and self._queues:
                await order_locks.unlock(self._core, self._consumer.group, list(self._queues))
            before = self.queues
            for process_queue in self._queues.values():
                process_queue.revoked = True
            self._queues.clear()
            self._consumer.forget_revoked()  # it may be entered again
            self._notify_rebalance(before)
            await self._core.presence.leave_consumer(self._consumer.group)

    def describe(self) -> dict[str, Any]:
        """ConsumerData as a heartbeat carries it."""
        return {
            "consumeFromWhere": {
                "first": "CONSUME_FROM_FIRST_OFFSET",
                "last": "CONSUME_FROM_LAST_OFFSET",
            }.get(str(self._start), "CONSUME_FROM_TIMESTAMP"),
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": self._consumer.group,
            "messageModel": "BROADCASTING" if self._consumer.broadcast else "CLUSTERING",
            "subscriptionDataSet": [row.describe() for row in self.subscriptions.values()],
            "unitMode": False,
        }

    # -- the assigned queues

    @property
    def process_queues(self) -> list[ProcessQueue]:
        return list(self._queues.values())

    @property
    def queues(self) -> list[MessageQueue]:
        return sorted(queue for queue in self._queues if queue.topic != self._retry_topic)

    def select(self, queues: Iterable[MessageQueue] | None) -> list[ProcessQueue]:
        if queues is None:
            return [self._queues[queue] for queue in self.queues]
        found = []
        for queue in queues:
            if queue not in self._queues:
                raise Misuse(f"{queue} is not assigned to this consumer now")
            found.append(self._queues[queue])
        return found

    def pause(self, queues: Iterable[MessageQueue] | None) -> None:
        """None: all, those of the retry topic too."""
        for process_queue in self.process_queues if queues is None else self.select(queues):
            self._paused.add(process_queue.queue)
            process_queue.running.clear()

    def resume(self, queues: Iterable[MessageQueue] | None) -> None:
        wanted = {*self._queues, *self._paused} if queues is None else set(queues)
        self.select(wanted - self._paused)  # Misuse for one that is neither paused nor ours
        self._paused -= wanted
        for queue in wanted & self._queues.keys():
            self._queues[queue].running.set()

    def request(self) -> None:
        """Rebalance soon."""
        self._wanted.set()

    async def _keep_balanced(self) -> None:
        while True:
            wait = INCOMPLETE_SECONDS if self._incomplete else REBALANCE_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # no request: the periodic rebalance is due
            self._wanted.clear()
            await self._rebalance()

    async def _rebalance(self, *, first: bool = False) -> None:
        """Rebalance every topic; refusals are raised the first time, and logged later."""
        self._incomplete = False
        before = self.queues
        for topic in self.subscriptions:
            try:
                await self._rebalance_topic(topic, first=first)
            except AerobeeError as error:
                if first and not error.retriable:
                    raise
                self._incomplete = True
                text = "group %s, topic %s: %s"
                log.log(log_level(error), text, self._consumer.group, topic, error)
            except Exception:
                self._incomplete = True
                log.exception("group %s, topic %s", self._consumer.group, topic)
        self._notify_rebalance(before)

    def _notify_rebalance(self, before: list[MessageQueue]) -> None:
        callback, now = self._consumer.options.on_rebalance, self.queues
        if callback is None or before == now:
            return
        try:
            callback(sorted({*now} - {*before}), sorted({*before} - {*now}))
        except Exception:
            log.exception("the rebalance callback of group %s failed", self._consumer.group)

    async def _route(self, topic: str) -> Route | None:
        route = self._core.routes.cached(topic)
        try:
            if route is None or not route.created:
                route = await self._core.routes.refresh(topic)
        except NoRoute:
            if topic != self._retry_topic and topic not in self._missed:
                self._missed.add(topic)
                text = "group %s waits for topic %r, which name servers %s do not know (yet)"
                servers = ", ".join(self._core.routes.name_servers)
                log.warning(text, self._consumer.group, topic, servers)
            return None
        if topic in self._missed:
            self._missed.discard(topic)
            log.warning("group %s: topic %r exists now", self._consumer.group, topic)
        return route

    async def _rebalance_topic(self, topic: str, *, first: bool) -> None:
        route = await self._route(topic)
        if route is None:
            self._incomplete = True
            return
        queues = sorted(route.read_queues())
        if not self._consumer.broadcast:
            members = await members_of(self._core, self._consumer.group, route)
            if self._core.client_id not in members:
                self._incomplete = True
                if first:
                    subscription = self.subscriptions[topic]
                    await probe(self._core, self._consumer.group, queues[0], subscription)
                await self._core.presence.beat()
                return
            queues = self._strategy(self._core.client_id, queues, members)
        mine = set(queues)
        for queue, process_queue in list(self._queues.items()):
            if queue.topic == topic:
                await self._keep_or_give_up(process_queue, keep=queue in mine)
        missing = [queue for queue in queues if queue not in self._queues]
        if missing and self._consumer.locks_queues:
            locked, _ = await order_locks.lock(self._core, self._consumer.group, missing)
            self._incomplete |= len(locked) < len(missing)
            missing = [queue for queue in missing if queue in locked]
        # Wait for all: the next rebalance must not meet a queue that is still being taken.
        taken = await asyncio.gather(*map(self._take, missing), return_exceptions=True)
        for error in taken:
            if error is not None:
                raise error

    # -- queues are taken and given up

    async def _take(self, queue: MessageQueue) -> None:
        offset = await self._offsets.load(queue)
        fresh = offset is None
        if offset is None:
            offset = await self._first_offset(queue)
        process_queue = ProcessQueue(self._consumer, queue, offset)
        self._begin(process_queue)
        if fresh:  # so that the next owner of the queue resumes here
            await self._commit([process_queue], confirm=False)

    async def _first_offset(self, queue: MessageQueue) -> int:
        is_new = queue not in self._old_queues
        if queue.topic == self._retry_topic or (is_new and self._start == "last"):
            return await positions.min_offset(self._core, queue)
        return await self.start_offset(queue, self._start)

    async def start_offset(self, queue: MessageQueue, start: Start | str) -> int:
        if start == "first":
            return await positions.min_offset(self._core, queue)
        if start == "last":
            return await positions.max_offset(self._core, queue)
        if isinstance(start, str):
            raise Misuse(f"start is 'first', 'last' or a time, not {start!r}")
        return await positions.offset_at(self._core, queue, timestamp_ms(start))

    def _begin(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        process_queue.locked_until = order_locks.expiry()
        self._queues[queue] = process_queue
        if queue in self._paused:
            process_queue.running.clear()
        if not self._reading:
            return  # moved while closing: the next owner reads from there
        name = f"read {queue.topic}/{queue.queue_id} of {queue.broker_name}"
        process_queue.reader = asyncio.create_task(
            read_queue(self._consumer, process_queue), name=name
        )

    def _end(self, process_queue: ProcessQueue) -> None:
        process_queue.revoked = True
        self._queues.pop(process_queue.queue, None)
        if process_queue.reader is not None and process_queue.reader is not asyncio.current_task():
            process_queue.reader.cancel()
        self._consumer.forget_revoked()

    async def _keep_or_give_up(self, process_queue: ProcessQueue, *, keep: bool) -> None:
        was_leaving, process_queue.leaving = process_queue.leaving, not keep
        if keep:
            if was_leaving:
                self._consumer.make_ready(process_queue)
        elif process_queue.in_hand:  # the next owner would begin with the same message
            self._incomplete = True
        else:
            await self._release(process_queue)

    async def _release(self, process_queue: ProcessQueue) -> None:
        await self._commit([process_queue], confirm=True)  # before the next owner asks for it
        self._end(process_queue)
        if self._consumer.locks_queues:
            queues = [process_queue.queue]
            await order_locks.unlock(self._core, self._consumer.group, queues)

    def drop(self, process_queue: ProcessQueue) -> None:
        """Stop reading, and try to take it again: its lock may have expired."""
        self._end(process_queue)
        self._incomplete = True
        self.request()

    def move(self, process_queue: ProcessQueue, queue_offset: int) -> None:
        """Continue from another offset; messages in flight are dropped."""
        if process_queue.revoked:
            return
        process_queue.moved = True
        self._end(process_queue)
        self._begin(ProcessQueue(self._consumer, process_queue.queue, queue_offset))

    async def begin_anew(self, process_queue: ProcessQueue) -> None:
        """The topic was deleted and made again: read it as one that was made after the start."""
        queue = process_queue.queue
        log.warning("group %s: the topic of %s was made again", self._consumer.group, queue)
        if self._consumer.broadcast:
            self.move(process_queue, await positions.min_offset(self._core, queue))
        else:  # the broker has deleted its offsets, too; else the group continues from them
            self._old_queues.discard(queue)
            self.drop(process_queue)

    # -- periodic: offsets and locks

    async def _commit_all(self) -> None:
        """One-way commits, except for offsets that did not move since the last round: those are
        sent again with an answer, as a broker that was stopping may not have read them."""
        rows = self.process_queues
        resting = [row for row in rows if row.confirmed != row.commit_offset == row.committed]
        await self._commit([row for row in rows if row not in resting], confirm=False)
        await self._commit(resting, confirm=True)

    async def commit(self, *, confirm: bool) -> None:
        await self._commit(self.process_queues, confirm=confirm)

    async def _commit(self, process_queues: list[ProcessQueue], *, confirm: bool) -> None:
        offsets = {
            row.queue: row.commit_offset
            for row in process_queues
            if not row.gone and row.commit_offset != (row.confirmed if confirm else row.committed)
        }
        if not offsets:
            return
        saved = await self._offsets.save(offsets, confirm=confirm)
        for row in process_queues:
            row.committed = saved.get(row.queue, row.committed)
            if confirm:
                row.confirmed = saved.get(row.queue, row.confirmed)

    async def _renew_locks(self) -> None:
        for broker in dict.fromkeys(queue.broker_name for queue in self._queues):
            # As they are now: a queue that was given up meanwhile must not be locked again.
            mine = [queue for queue in self._queues if queue.broker_name == broker]
            locked, refused = await order_locks.lock(self._core, self._consumer.group, mine)
            for queue, process_queue in list(self._queues.items()):
                if queue in locked:
                    process_queue.locked_until = order_locks.expiry()
                elif queue in refused:  # without an answer a lock is valid until it expires
                    self.drop(process_queue)
