"""Metrics and health: right numbers under upstream's names, and honest about a hanging loop."""

import asyncio
import concurrent.futures
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.daemon import Daemon
from peers.tools import wait_for
from peers.wire import Wire
from prometheus_client.parser import text_string_to_metric_families

from aerobee.broker.base.histogram import Histogram
from aerobee.broker.daemon import metrics_server
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.daemon.metrics_port import MetricsPort, start_metrics
from aerobee.broker.daemon.metrics_server import MetricsServer
from aerobee.broker.settings import load_settings
from aerobee.broker.store.refusals import Cause

BODY = b"x" * 1000


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, str]]:
    """A broker with ten messages, four of them consumed, and its metrics."""
    daemon = Daemon(tmp_path_factory.mktemp("metrics"), metricsLabel="zone:a")
    with daemon, Wire(daemon.ready()["broker"]) as wire:
        heartbeat = (
            b'{"clientID":"c1","consumerDataSet":[{"groupName":"readers","consumeType":'
            b'"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":'
            b'"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{"topic":"orders",'
            b'"subString":"*","subVersion":1}]}],"producerDataSet":[{"groupName":"writers"}]}'
        )
        for _ in range(10):
            names = "abcdefghi"
            values = ("writers", "orders", "TBW102", 4, 0, 0, 0, 0, "KEYS\1k\2")
            ext = dict(zip(names, values, strict=True))
            assert wire.request(310, ext, BODY).code == 0
        assert wire.request(34, {}, heartbeat).code == 0
        pull = {
            "consumerGroup": "readers",
            "topic": "orders",
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 4,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 1,
        }
        last = {"maxOffset": "10"}.items()
        wait_for(
            lambda: last <= wire.request(11, pull).ext.items(),
            timeout=30,
            what="all are dispatched",
        )
        commit = {"consumerGroup": "readers", "topic": "orders", "queueId": 0}
        assert wire.request(15, commit | {"commitOffset": 4}).code == 0
        time.sleep(0.06)  # what is not read yet grows old
        yield daemon, get(daemon, "metrics")


def get(daemon: Daemon, path: str) -> str:
    url = f"http://{daemon.metrics_address()}/{path}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read(), "utf-8")


def values(text: str, name: str, **labels: str) -> list[float]:
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def test_counts_are_right_and_named_as_upstream_names_them(scraped: tuple[Daemon, str]) -> None:
    text = scraped[1]
    common = {"cluster": "DefaultCluster", "node_type": "broker", "zone": "a", "topic": "orders"}
    assert values(text, "rocketmq_messages_in_total", **common, is_system="false") == [10]
    (bytes_in,) = values(text, "rocketmq_throughput_in_total", **common)
    assert 10 * len(BODY) < bytes_in < 10 * (len(BODY) + 500)
    group = common | {"consumer_group": "readers", "is_retry": "false", "is_system": "false"}
    assert values(text, "rocketmq_messages_out_total", **group)[0] >= 4
    assert values(text, "rocketmq_consumer_lag_messages", **group) == [6]
    (age_ms,) = values(text, "rocketmq_consumer_lag_latency", **group)
    assert 50 < age_ms < 60_000


def test_sizes_and_times_are_histograms(scraped: tuple[Daemon, str]) -> None:
    text = scraped[1]
    assert values(text, "rocketmq_message_size_count") == [10]
    assert values(text, "rocketmq_message_size_bucket", le="1023.0") == [0]
    assert values(text, "rocketmq_message_size_bucket", le="4095.0") == [10]
    assert values(text, "rocketmq_rpc_latency_count", request_code="heart_beat") == [1]
    puts = values(text, "aerobee_store_put_seconds_count")
    assert puts[0] >= 10
    assert values(text, "aerobee_store_put_seconds_bucket", le="+Inf") == puts


def test_clients_store_and_process_are_there(scraped: tuple[Daemon, str]) -> None:
    text = scraped[1]
    for kind in ("timer", "delayed", "half"):
        assert values(text, "aerobee_pending_carried_total", kind=kind) == [0]
        assert values(text, "aerobee_pending_lost_total", kind=kind) == [0]
    client = {"language": "cpp", "version": "63", "protocol_type": "remoting"}
    assert values(text, "rocketmq_producer_connections", **client) == [1]
    assert values(text, "rocketmq_consumer_connections", **client, consumer_group="readers") == [1]
    assert values(text, "aerobee_connections") == [1]
    size = values(text, "rocketmq_storage_size", storage_type="local", storage_medium="disk")
    assert size[0] > 10 * len(BODY)
    assert values(text, "rocketmq_storage_dispatch_behind_bytes") == [0]
    assert len(values(text, "rocketmq_storage_flush_behind_bytes")) == 1
    assert values(text, "aerobee_mapped_files")[0] >= 1
    assert 0 < values(text, "aerobee_disk_used_ratio")[0] <= 1
    assert values(text, "rocketmq_topic_number")[0] > 5
    assert values(text, "process_resident_memory_bytes")[0] > 1 << 20
    assert len(values(text, "aerobee_delayed_messages")) == 18


def test_every_metric_is_on_its_page(scraped: tuple[Daemon, str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    served = {line.split()[2] for line in scraped[1].splitlines() if line.startswith("# HELP")}
    ours = {name for name in served if name.startswith(("rocketmq_", "aerobee_"))}
    assert {name for name in ours if name not in page} == set()
    named = set(re.findall(r"\b(?:rocketmq|aerobee)_\w+[a-z]\b", page))
    with_etcd = set(
        re.findall(r"^\| (aerobee_\w+) \|[^|]*\| with etcd or a controller: ", page, re.MULTILINE)
    )
    assert named - ours == with_etcd and len(with_etcd) == 5  # tests/ha/test_failover_told.py


def test_health_and_readiness_are_reported_over_http(scraped: tuple[Daemon, str]) -> None:
    daemon = scraped[0]
    assert get(daemon, "healthz") == "ok\n"
    assert get(daemon, "readyz") == "ready\n"
    with pytest.raises(urllib.error.HTTPError) as error:
        get(daemon, "elsewhere")
    assert error.value.code == 404
    error.value.close()


def test_a_second_broker_starts_without_metrics_where_no_port_was_asked_for(
    tmp_path: Path, scraped: tuple[Daemon, str]
) -> None:
    port = scraped[0].metrics_address().rpartition(":")[2]
    settings = load_settings(None, [f"metricsPromExporterPort={port}"], {})
    settings.sources.clear()

    async def start() -> bool:
        return start_metrics(settings, MetricsPort(lambda: None, lambda: "", lambda: True))

    assert asyncio.run(start()) is False


@pytest.mark.parametrize("host", ["0.0.0.0", "::1"])
async def test_metrics_start_on_any_address_without_asking_a_name_server(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """One that does not answer would delay the start by many seconds."""
    asked: list[str] = []

    def note(name: str = "") -> str:
        asked.append(name)
        return name

    monkeypatch.setattr(socket, "getfqdn", note)
    server = MetricsPort(lambda: None, lambda: "", lambda: True)
    server.start(host, 0)
    try:
        address = f"[{host}]" if ":" in host else "127.0.0.1"
        page = await asyncio.to_thread(page_of, f"http://{address}:{server.port}/readyz")
    finally:
        server.stop()
    assert page == "ready\n" and asked == []


def page_of(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


async def test_a_broker_that_refuses_messages_is_not_healthy(tmp_path: Path) -> None:
    app = AppBroker(
        load_settings(
            None,
            {
                "listenPort": 0,
                "namesrvListenPort": 0,
                "metricsPromExporterPort": 0,
                "storePathRootDir": tmp_path,
                "mappedFileSizeCommitLog": 1 << 20,
            },
            {},
        )
    )
    await app.start()
    try:
        assert app.metrics_port > 0
        assert app.health() == ""
        app.broker.store.refusals.set(Cause.SYNC_FAILED, "the disk failed")
        assert "the disk failed" in app.health()
    finally:
        await app.stop()
    assert not app.is_ready


async def test_a_loop_that_hangs_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "_LOOP_S", 0.2)
    loop = asyncio.get_running_loop()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        server = MetricsServer(listener, loop, lambda: None, lambda: "", lambda: True, None)
        asked = loop.run_in_executor(threads, server.answer, "/healthz", "")
        assert (await asked)[0] == 200
        hanging = threads.submit(server.answer, "/healthz", "")
        time.sleep(0.5)  # noqa: ASYNC251  # the very thing that a probe must notice
        assert hanging.result()[0] == 503
        assert (await asyncio.to_thread(server.answer, "/metrics", ""))[0] == 503


def test_a_histogram_counts_what_is_below_its_bounds() -> None:
    histogram = Histogram()
    for seconds in (0.0, 50e-6, 900e-6, 3.0, 1e9):
        histogram.add(seconds)
    assert histogram.buckets((6, 10, 22), 1) == [
        ("6.4e-05", 2.0),
        ("0.001024", 3.0),
        ("4.194304", 4.0),
        ("+Inf", 5.0),
    ]
