"""What RocketMQ 5 exports of consumers, transactions and timers: right numbers by real flows."""

import asyncio
import urllib.request
from pathlib import Path

from peers.tools import free_port
from prometheus_client.parser import text_string_to_metric_families
from waiting import until

from aerobee import Message, Verdict
from aerobee.testing import EmbeddedBroker


async def scrape(port: int) -> dict[str, dict[tuple[str, ...], float]]:
    """Name -> (its own labels' values, by their names) -> value."""

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            return str(answer.read(), "utf-8")

    common = ("cluster", "node_type", "node_id", "storage_type", "storage_medium")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(read)):
        for sample in family.samples:
            labels = tuple(
                value for key, value in sorted(sample.labels.items()) if key not in common
            )
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


async def test_consumers_transactions_timers_and_retention_are_measured(tmp_path: Path) -> None:
    port = free_port()
    options = {"metricsExporterType": "PROM", "metricsPromExporterPort": port}
    async with EmbeddedBroker(tmp_path, **options) as broker, broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)
        for number in range(5):
            await mq.send("orders", b"%d" % number)
        async with mq.consumer("orders", group="billing") as inbox:
            taken = await inbox.get_batch(5, 10)
            while len(taken) < 5:
                taken += await inbox.get_batch(5, 10)
            await taken[0].ack()
            await taken[1].reject("never")
            await inbox.commit()
            labels = ("billing", "false", "false", "orders")

            async def is_counted() -> bool:
                flying = (await scrape(port))["rocketmq_consumer_inflight_messages"]
                return flying.get(labels) == 3

            await until(is_counted, 20)
            found = await scrape(port)
            assert found["rocketmq_consumer_ready_messages"][labels] == 0
            assert found["rocketmq_send_to_dlq_messages_total"] == {
                ("billing", "false", "orders"): 1
            }
        await mq.send("orders", b"late", delay=3000)
        await mq.send("orders", b"later", delay=40_000)

        async def never(message: Message) -> Verdict:
            raise AssertionError(message)

        async with mq.transactions("orders", group="pay", check=never) as transactions:
            async with transactions.begin(b"yes"):
                pass
            async with transactions.begin(b"no") as half:
                half.rollback()
        await until(lambda: broker.app.broker.timers.pending == 2, 20)
        found = await scrape(port)
        assert found["rocketmq_timer_enqueue_total"] == {("orders",): 2}
        snapshot = found["rocketmq_timer_message_snapshot"]
        assert {bound: count for (bound,), count in snapshot.items() if count} == {
            "3600": 1,
            "86400": 1,
        }
        assert found["rocketmq_delay_message_latency_count"] == {(): 2}
        assert found["rocketmq_commit_messages_total"] == {("orders",): 1}
        assert found["rocketmq_rollback_messages_total"] == {("orders",): 1}
        assert found["rocketmq_finish_message_latency_count"] == {("orders",): 2}
        await broker.advance(hours=1)
        found = await scrape(port)
        assert found["rocketmq_timer_dequeue_total"] == {("orders",): 1}
        assert found["rocketmq_storage_message_reserve_time"][()] >= 3_600_000
        assert found["rocketmq_consumer_queueing_latency"][labels] > 0
        assert found["rocketmq_timer_enqueue_lag"] == {(): 0}
        assert found["rocketmq_timer_dequeue_latency"] == {(): 0}
