"""Spans and metrics of the SDK, with OpenTelemetry's own SDK, on a real broker."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind
from waiting import until

from aerobee import AerobeeError, Client, Message, connect, sync
from aerobee.testing import EmbeddedBroker
from telemetry.collected import EXPORTER, READER, attributes, parent, spans


@pytest.fixture(autouse=True)
def nothing_collected() -> None:
    EXPORTER.clear()


async def handle(
    mq: Client,
    topic: str,
    group: str,
    count: int,
    handler: Callable[[Message, int], Awaitable[None]],
) -> None:
    """Run the handler until it was called that often."""
    calls = []

    async def counted(message: Message) -> None:
        calls.append(message)
        await handler(message, len(calls))

    async with mq.consumer(topic, group=group) as inbox:
        running = asyncio.ensure_future(inbox.run(counted))
        await until(lambda: len(calls) >= count, 20)
        await inbox.close()
        await running


async def test_one_trace_goes_from_the_sender_to_the_handler_and_on(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with connect(aerobee_broker.url, telemetry=True) as mq:
        with trace.get_tracer("app").start_as_current_span("order") as order:
            receipt = await mq.send("orders", b"12345", tag="paid", key=["a", "b"], order_key="o")

        async def bill(message: Message, _: int) -> None:
            await mq.send("bills", b"x")

        await handle(mq, "orders", "billing", 1, bill)
        client_id = mq.client_id
    [sent], [process], [bill_sent] = (
        spans("send orders"),
        spans("process orders"),
        spans("send bills"),
    )
    assert parent(sent) == order.get_span_context().span_id
    assert parent(process) == sent.context.span_id
    assert parent(bill_sent) == process.context.span_id
    assert {span.context.trace_id for span in (sent, process, bill_sent)} == {
        order.get_span_context().trace_id
    }
    assert (sent.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attributes(sent) == {
        "messaging.system": "rocketmq",
        "messaging.rocketmq.namespace": "",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.client.id": client_id,
        "messaging.message.id": receipt.message_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.type": "fifo",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("a", "b"),
        "messaging.rocketmq.message.group": "o",
    }
    assert attributes(process)["messaging.consumer.group.name"] == "billing"
    assert attributes(process)["messaging.rocketmq.consumption_model"] == "clustering"
    [receive] = spans("receive orders")
    assert receive.kind is SpanKind.CLIENT
    assert [link.context.span_id for link in receive.links] == [sent.context.span_id]


async def test_the_trace_continues_through_a_timer_and_a_retry(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with connect(aerobee_broker.url, telemetry=True) as mq:
        await mq.send("orders", b"1", delay=3600)
        await aerobee_broker.advance(hours=2)

        async def fail_once(message: Message, call: int) -> None:
            if call == 1:
                asyncio.get_running_loop().call_later(
                    0.2, lambda: asyncio.ensure_future(aerobee_broker.advance(minutes=1))
                )
                raise ValueError("not today")

        await handle(mq, "orders", "billing", 2, fail_once)
    [sent], [first, second] = spans("send orders"), spans("process orders")
    assert {parent(first), parent(second)} == {sent.context.span_id}
    assert attributes(first)["error.type"] == "ValueError" and not first.status.is_ok
    assert second.status.is_ok or second.status.is_unset


async def test_a_batch_is_one_span_with_a_link_to_each_message(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with connect(aerobee_broker.url, telemetry=True) as mq:
        tracer = trace.get_tracer("app")
        made = []
        async with mq.producer("orders", linger=0.2) as producer:
            for number in range(3):
                with tracer.start_as_current_span("make") as span:
                    made.append(span.get_span_context().span_id)
                    await producer.send(b"%d" % number)
        [sent] = spans("send orders")
        assert attributes(sent)["messaging.batch.message_count"] == 3
        assert [link.context.span_id for link in sent.links] == made
        seen = [message async for message in mq.find("orders")]
        assert [
            f"{span:016x}" in message.properties["traceparent"]
            for span, message in zip(made, sorted(seen, key=lambda one: one.body), strict=True)
        ] == [True] * 3


async def test_a_failed_send_says_so(aerobee_broker: EmbeddedBroker) -> None:
    async with connect(aerobee_broker.url, telemetry=True) as mq:
        await mq.send("orders", b"1")
        await aerobee_broker.stop()
        with pytest.raises(AerobeeError):
            await mq.send("orders", b"2", timeout=1)
    [_, failed] = spans("send orders")
    assert attributes(failed)["error.type"] and not failed.status.is_ok


async def test_client_metrics_have_the_names_of_the_conventions(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with connect(aerobee_broker.url, telemetry=True) as mq:
        await mq.send("counted", b"1")

        async def nothing(message: Message, _: int) -> None: ...

        await handle(mq, "counted", "counters", 1, nothing)
    collected = READER.get_metrics_data()
    assert collected is not None
    found = {
        metric.name: [dict(point.attributes or {}) for point in metric.data.data_points]
        for resource in collected.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert set(found) == {
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
    }
    for rows in found.values():
        assert any(row["messaging.destination.name"] == "counted" for row in rows)


async def test_the_blocking_client_is_traced_and_so_is_work_by_hand(
    aerobee_broker: EmbeddedBroker,
) -> None:
    def work() -> None:
        with sync.connect(aerobee_broker.url, telemetry=True) as mq:
            with trace.get_tracer("app").start_as_current_span("order"):
                mq.send("orders", b"1")
            with mq.consumer("orders", group="billing") as inbox:
                message = inbox.get(10)
                assert message is not None
                with inbox.processing(message):
                    mq.send("bills", b"2")
                message.ack()

    await asyncio.to_thread(work)
    [order], [sent], [process], [bill] = (
        spans(name) for name in ("order", "send orders", "process orders", "send bills")
    )
    assert parent(sent) == order.context.span_id
    assert parent(process) == sent.context.span_id
    assert parent(bill) == process.context.span_id


async def test_without_telemetry_nothing_of_it_is_there(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        with trace.get_tracer("app").start_as_current_span("order"):
            receipt = await mq.send("orders", b"1")
        message = await mq.message(receipt.message_id, topic="orders")
        assert "traceparent" not in message.properties
        async with mq.consumer("orders", group="billing") as inbox:
            with inbox.processing(message):
                pass
    assert [span.name for span in EXPORTER.get_finished_spans()] == ["order"]


async def test_what_instruments_programs_turns_it_on_for_all_clients(
    aerobee_broker: EmbeddedBroker,
) -> None:
    [found] = [
        point
        for point in entry_points(group="opentelemetry_instrumentor")
        if point.name == "aerobee"
    ]
    instrumentor = found.load()()
    instrumentor.instrument()
    try:
        async with (
            aerobee_broker.connect() as mq,
            connect(aerobee_broker.url, telemetry=False) as no,
        ):
            await mq.send("orders", b"1")
            await no.send("orders", b"2")
    finally:
        instrumentor.uninstrument()
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"3")
    assert len(spans("send orders")) == 1


def test_an_absent_extra_says_its_name_and_nobody_else_imports_it() -> None:
    code = """
        import sys
        import aerobee, aerobee.sync
        from aerobee import connect
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]
        sys.modules["opentelemetry"] = None  # as if it were not installed
        try:
            connect("mq://127.0.0.1:9", telemetry=True)
        except aerobee.Misuse as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert "pip install 'aerobee[otel]'" in done.stdout and done.stdout.count("\n") == 1
