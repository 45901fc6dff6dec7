"""`aerobee bench`: how fast this machine, this network and this broker are together."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, Final

import click

from aerobee.client.cli.common import CommonOptions, connected, forget_group
from aerobee.client.cli.failures import Failure
from aerobee.client.cli.output import print_rows, progress
from aerobee.client.client import Client, connect

TOPIC: Final = "aerobee-bench"


@click.command()
@click.option("-n", "--count", type=click.IntRange(min=1), default=100_000, show_default=True)
@click.option("--size", type=click.IntRange(1, 1 << 20), default=1024, show_default=True)
@click.option("--topic", default=TOPIC, show_default=True, help="A topic that does not exist yet.")
@click.option("--linger", type=float, default=0.002, show_default=True, help="Seconds.")
@click.option("--keep", is_flag=True, help="Keep the topic.")
@connected
async def bench(
    common: CommonOptions, mq: Client, count: int, size: int, topic: str, linger: float, keep: bool
) -> None:
    """Send messages in batches, one by one, and consume them again."""
    if topic != TOPIC and topic in await mq.admin.topics(system=True):
        raise Failure(f"topic {topic} exists already; the benchmark creates its own and deletes it")
    await mq.admin.create_topic(topic, queues=4)
    try:
        rows = await _measure_all(mq, common, topic, count, os.urandom(size), linger)
    finally:
        if not keep:
            await mq.admin.delete_topic(topic)
    print_rows(rows, as_json=common.json, empty="")


async def _measure_all(
    mq: Client, common: CommonOptions, topic: str, count: int, body: bytes, linger: float
) -> list[dict[str, Any]]:
    size = len(body)
    rows = [
        await _measure(
            "send in batches", count, size, _send(mq, topic, body, count, linger, common)
        ),
        await _measure("consume", count, size, _consume(mq, topic, count, common)),
    ]
    single = min(count, 2000)
    latencies: list[float] = []
    rows.append(
        await _measure(
            "send one by one", single, size, _one_by_one(mq, topic, body, single, latencies)
        )
    )
    latencies.sort()
    rows[-1]["p50_ms"] = round(latencies[len(latencies) // 2] * 1000, 3)
    rows[-1]["p99_ms"] = round(latencies[len(latencies) * 99 // 100] * 1000, 3)
    for row in rows:
        row.setdefault("p50_ms", None)
        row.setdefault("p99_ms", None)
    return rows


async def _measure(what: str, count: int, size: int, work: Any) -> dict[str, Any]:
    begun = time.perf_counter()
    await work
    seconds = time.perf_counter() - begun
    return {
        "what": what,
        "messages": count,
        "seconds": round(seconds, 3),
        "messages_per_second": round(count / seconds),
        "mb_per_second": round(count * size / seconds / 1e6, 1),
    }


async def _send(
    mq: Client, topic: str, body: bytes, count: int, linger: float, common: CommonOptions
) -> None:
    step = max(1, count // 100)
    with progress("sending", count, hidden=common.json) as done:
        async with mq.producer(topic, linger=linger, timeout=30) as producer:
            for number in range(count):
                await producer.send(body)
                if number % step == 0:
                    done(step)


async def _consume(mq: Client, topic: str, count: int, common: CommonOptions) -> None:
    step = max(1, count // 100)
    group = f"{topic}-{time.time_ns()}"
    got = 0
    # A connection of its own: closing it ends the pulls that the broker still holds.
    try:
        async with connect(common.url, timeout=common.timeout) as other:
            with progress("consuming", count, hidden=common.json) as done:
                async with other.consumer(topic, group=group) as inbox:
                    async for _ in inbox:
                        got += 1
                        if got % step == 0:
                            done(step)
                        if got == count:
                            break
    finally:
        await forget_group(mq, group)


async def _one_by_one(
    mq: Client, topic: str, body: bytes, count: int, latencies: list[float]
) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(count):
        begun = loop.time()
        await mq.send(topic, body)
        latencies.append(loop.time() - begun)
