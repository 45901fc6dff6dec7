"""One trace through OpenTelemetry's Java agent, Aerobee and the SDK, with a retry and a timer."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.apache import PROJECT, build
from peers.java_client import JavaClient
from peers.tools import build_once, wait_for

from aerobee import sync
from telemetry.collected import EXPORTER, spans

pytestmark = pytest.mark.apache

AGENT = "2.33.1"
CLIENT = "5.5.0"
SPAN = re.compile(
    r"'(?P<name>[^']+)' : (?P<trace>[0-9a-f]{32}) (?P<span>[0-9a-f]{16}) (?P<kind>\w+)"
)


def agent() -> Path:
    """The agent's jar, fetched once."""
    folder = PROJECT / "target" / "agent"
    artifact = f"io.opentelemetry.javaagent:opentelemetry-javaagent:{AGENT}"
    copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
    build_once(
        [[*copy, f"-DoutputDirectory={folder}"]],
        folder=PROJECT,
        sources=[],
        stamp=folder / "fetched.sha256",
    )
    return folder / f"opentelemetry-javaagent-{AGENT}.jar"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JavaClient]:
    """A Java client with the agent, which writes its spans to the client's log."""
    build(CLIENT)
    options = {
        "otel.traces.exporter": "console",
        "otel.metrics.exporter": "none",
        "otel.logs.exporter": "none",
        "otel.bsp.schedule.delay": "100",
    }
    words = [f"-javaagent:{agent()}", *(f"-D{key}={value}" for key, value in options.items())]
    with monkeypatch.context() as set_for:
        set_for.setenv("JAVA_TOOL_OPTIONS", " ".join(words))
        client = JavaClient(CLIENT, tmp_path / "java")
    with client as running:
        yield running


def java_traces(folder: Path, topic: str, kind: str) -> list[int]:
    """Trace ids of the agent's spans of this kind that name the topic."""
    text = (folder / "java" / "client.log").read_text()
    return [
        int(found["trace"], 16)
        for found in SPAN.finditer(text)
        if topic in found["name"] and found["kind"] == kind
    ]


def test_one_trace_goes_from_java_to_python_and_back(tmp_path: Path, java: JavaClient) -> None:
    EXPORTER.clear()
    with (
        AerobeeBroker(tmp_path / "broker") as broker,
        sync.connect(f"mq://{broker.namesrv}", telemetry=True, timeout=10) as mq,
    ):
        for topic in ("questions", "answers"):
            mq.admin.create_topic(topic, queues=1)
        consumer = java.consumer(
            broker.namesrv, "c-answers", "g-answers", "answers", fails=1, level=1
        )
        producer = java.producer(broker.namesrv, "p-questions")
        calls: list[int] = []

        def answer(message: sync.Message) -> None:
            calls.append(message.reconsume_times)
            if len(calls) == 1:
                message.retry(delay=0.5)
                return
            mq.send("answers", b"42", delay=1.0)

        with mq.consumer("questions", group="g-questions") as inbox:
            running = threading.Thread(target=inbox.run, args=(answer,))
            running.start()
            java.send(producer, "questions", 1)
            java.wait_messages(consumer, 2)  # the first one it gives back
            time.sleep(0.5)
        running.join(20)

        def all_spans_are_there() -> bool:
            return bool(
                java_traces(tmp_path, "questions", "PRODUCER")
                and len(java_traces(tmp_path, "answers", "CONSUMER")) >= 2
            )

        wait_for(all_spans_are_there, timeout=30, what="the agent has written its spans")
    assert calls == [0, 1]
    [sent] = java_traces(tmp_path, "questions", "PRODUCER")
    assert [span.context.trace_id for span in spans("process questions")] == [sent, sent]
    assert [span.context.trace_id for span in spans("send answers")] == [sent]
    assert set(java_traces(tmp_path, "answers", "CONSUMER")) == {sent}
