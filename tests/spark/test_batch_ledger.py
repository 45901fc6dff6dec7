"""The broker's half of the exactly-once sink, by its wire: a real broker, real kills."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from peers.aerobee_broker import AerobeeBroker

from aerobee.pipeline import arrow
from aerobee.pipeline.cli import pipeline
from aerobee.pipeline.options import source_options
from aerobee.pipeline.source.puller import PullPlan, Range, pull_range
from aerobee.pipeline.source.queues import discover, latest
from aerobee.pipeline.wire import Access, BrokerError, Cluster
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.wire.sink_codes import SINK_COMMIT, SINK_PREPARE, SINK_STATE


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AerobeeBroker]:
    with AerobeeBroker(tmp_path / "broker") as running:
        yield running


class Sink:
    """A writer's requests, without Spark."""

    def __init__(self, broker: AerobeeBroker, query: str = "q-1") -> None:
        self.broker = broker
        self.query = query
        self.cluster = Cluster(Access((broker.namesrv,), patience=2))

    def state(self) -> int:
        ext = {"query": self.query}
        answer = self.cluster.request("state", self.broker.broker, SINK_STATE, ext)
        return int(answer.ext["batch"])

    def prepare(
        self, batch: int, chunk: int, rows: list[bytes], *, partition: int = 0, attempt: int = 0
    ) -> list[int] | None:
        ext = {
            "query": self.query,
            "batch": str(batch),
            "partition": str(partition),
            "attempt": str(attempt),
            "chunk": str(chunk),
            "topic": "out",
            "queueId": "-1",
            "bornTimestamp": "1700000000000",
        }
        body = encode_batch([(0, row, "KEYS\x01k\x02") for row in rows])
        answer = self.cluster.request("prepare", self.broker.broker, SINK_PREPARE, ext, body)
        if "committed" in answer.ext:
            return None
        return [partition, attempt, chunk, int(answer.ext["offset"]), int(answer.ext["size"])]

    def commit_request(
        self, batch: int, chunks: Sequence[list[int] | None], timeout_ms: int = 60_000
    ) -> tuple[int, dict[str, str], bytes]:
        ext = {"query": self.query, "batch": str(batch), "timeoutMs": str(timeout_ms)}
        return SINK_COMMIT, ext, json.dumps({"chunks": chunks}).encode()

    def commit(self, batch: int, chunks: Sequence[list[int] | None], **more: int) -> dict[str, str]:
        request = self.commit_request(batch, chunks, **more)
        return self.cluster.request("commit", self.broker.broker, *request).ext


@pytest.fixture
def make_sink(broker: AerobeeBroker) -> Iterator[Callable[..., Sink]]:
    made: list[Sink] = []

    def make(query: str = "q-1") -> Sink:
        made.append(Sink(broker, query))
        return made[-1]

    yield make
    for sink in made:
        sink.cluster.close()


def stored_rows(broker: AerobeeBroker, topic: str = "out") -> Counter[bytes]:
    """What a consumer of the topic can see."""
    seen: Counter[bytes] = Counter()
    options = source_options({"namesrv": broker.namesrv, "subscribe": topic}, streaming=False)
    plan = PullPlan("check", ("TAG", "*"), True)
    with Cluster(Access.of(options)) as cluster:
        if cluster.route(topic) is None:
            return seen
        addresses = discover(cluster, options)
        for key, end in latest(cluster, addresses).items():
            wanted = Range(key, addresses[key], 0, end)
            for body in pull_range(cluster, wanted, plan, print):
                seen.update(arrow.decode(body, ["value"]).column(0).to_pylist())
    return seen


def rows_of(chunk: int, count: int) -> list[bytes]:
    return [b"%d-%d" % (chunk, row) for row in range(count)]


def test_prepared_rows_appear_at_the_commit_and_not_before(
    broker: AerobeeBroker, make_sink: Callable[..., Sink]
) -> None:
    sink = make_sink()
    chunks = [sink.prepare(0, n, rows_of(n, 10)) for n in range(3)]
    time.sleep(0.3)
    assert stored_rows(broker) == Counter()
    assert sink.commit(0, chunks) == {"rows": "30"}
    assert stored_rows(broker) == Counter(row for n in range(3) for row in rows_of(n, 10))
    assert sink.state() == 0


def test_a_batch_that_is_committed_again_is_not_published_again(
    broker: AerobeeBroker, make_sink: Callable[..., Sink]
) -> None:
    sink = make_sink()
    chunk = sink.prepare(7, 0, [b"row"])
    again = sink.prepare(7, 0, [b"row"], attempt=1)
    sink.commit(7, [chunk])
    assert sink.commit(7, [again]) == {"committed": "true"}
    assert sink.prepare(7, 0, [b"row"], attempt=2) is None
    broker.restart()
    assert sink.commit(7, [again]) == {"committed": "true"}
    assert stored_rows(broker) == Counter([b"row"])


def test_queries_have_ledgers_of_their_own(
    broker: AerobeeBroker, make_sink: Callable[..., Sink]
) -> None:
    one, two = make_sink("q-1"), make_sink("q-2")
    one.commit(5, [one.prepare(5, 0, [b"one"])])
    assert (one.state(), two.state()) == (5, -1)
    two.commit(3, [two.prepare(3, 0, [b"two"])])
    assert stored_rows(broker) == Counter([b"one", b"two"])


def run_ledger(broker: AerobeeBroker, *words: str, fails: bool = False) -> str:
    result = CliRunner().invoke(pipeline, ["ledger", *words, "--namesrv", broker.namesrv])
    assert (result.exit_code != 0) == fails, result.output
    return result.output


def test_the_ledger_is_listed_and_queries_are_forgotten_for_good(
    broker: AerobeeBroker, make_sink: Callable[..., Sink]
) -> None:
    for query in ("q-1", "q-2"):
        sink = make_sink(query)
        sink.commit(4, [sink.prepare(4, 0, [b"row"])])
    assert [line.split()[:3] for line in run_ledger(broker, "list").splitlines()] == [
        ["q-1", "batch", "4"],
        ["q-2", "batch", "4"],
    ]
    assert "q-1 forgotten" in run_ledger(broker, "forget", "q-1")
    assert run_ledger(broker, "forget", "--older-than", "1") == ""
    assert "no broker remembers q-1" in run_ledger(broker, "forget", "q-1", fails=True)
    assert "name queries" in run_ledger(broker, "forget", fails=True)
    broker.kill_and_start()
    assert run_ledger(broker, "list").startswith("q-2  batch 4")


def test_a_query_whose_last_commit_is_long_ago_is_forgotten_at_the_next_commit(
    broker: AerobeeBroker, make_sink: Callable[..., Sink]
) -> None:
    for query in ("old", "new", "older-than-the-times"):
        sink = make_sink(query)
        sink.commit(0, [sink.prepare(0, 0, [b"row"])])
    broker.stop()
    file = broker.store / "config" / "sparkSink.json"
    content = json.loads(file.read_text())
    content["committedAt"]["old"] -= 91 * 24 * 3_600_000
    del content["committedAt"]["older-than-the-times"]  # as a file of before has it
    file.write_text(json.dumps(content))
    broker.start()
    sink.cluster.drop(broker.broker)
    sink = make_sink("new")
    sink.commit(1, [sink.prepare(1, 0, [b"row"])])
    known = [line.split()[0] for line in run_ledger(broker, "list").splitlines()]
    assert known == ["new", "older-than-the-times"]


def test_an_abandoned_batch_leaves_nothing_visible(
    broker: AerobeeBroker, make_sink: Callable[..., Sink]
) -> None:
    sink = make_sink()
    sink.prepare(0, 0, [b"never"])
    chunk = sink.prepare(0, 0, [b"kept"], attempt=1)
    sink.commit(0, [chunk])
    broker.kill_and_start()
    assert stored_rows(broker) == Counter([b"kept"])


def test_rows_prepared_too_long_ago_are_refused(
    broker: AerobeeBroker, make_sink: Callable[..., Sink]
) -> None:
    sink = make_sink()
    chunk = sink.prepare(0, 0, [b"late"])
    time.sleep(0.05)
    with pytest.raises(BrokerError, match="preparedTimeout"):
        sink.commit(0, [chunk], timeout_ms=10)
    assert stored_rows(broker) == Counter()


def test_a_chunk_of_another_batch_is_refused(
    broker: AerobeeBroker, make_sink: Callable[..., Sink]
) -> None:
    sink = make_sink()
    chunk = sink.prepare(0, 0, [b"row"])
    with pytest.raises(BrokerError, match="is not at"):
        sink.commit(1, [chunk])
    assert stored_rows(broker) == Counter()
    assert sink.state() == -1


def test_a_topic_that_clients_may_not_send_to_is_refused(
    broker: AerobeeBroker, make_sink: Callable[..., Sink]
) -> None:
    sink = make_sink()
    ext = {
        name: "0" for name in ("batch", "partition", "attempt", "chunk", "queueId", "bornTimestamp")
    }
    ext |= {"query": "q", "topic": "SCHEDULE_TOPIC_XXXX"}
    body = encode_batch([(0, b"x", "")])
    with pytest.raises(BrokerError, match="forbidden"):
        sink.cluster.request("prepare", broker.broker, SINK_PREPARE, ext, body)


def visible_in_files(broker: AerobeeBroker) -> int:
    """How many rows stand in the stopped broker's log."""
    log = str(broker.store / "commitlog")
    return sum(
        batch.num_rows for batch in arrow.read_store(log, topics=["out"], columns=["offset"])
    )


def test_a_commit_cut_off_by_a_kill_is_finished_and_every_row_is_there_once(
    broker: AerobeeBroker, make_sink: Callable[..., Sink]
) -> None:
    """Kills until one hits the middle of publishing; none may lose or add a row."""
    chunks_in_batch, rows_in_chunk, delay = 40, 500, 0.03
    expected: Counter[bytes] = Counter()
    sink = make_sink()
    before = 0
    for batch in range(14):
        rows = [
            [b"%d-%d-%d" % (batch, chunk, row) for row in range(rows_in_chunk)]
            for chunk in range(chunks_in_batch)
        ]
        chunks = [sink.prepare(batch, number, part) for number, part in enumerate(rows)]
        link = sink.cluster.link(broker.broker)
        link.ask(*sink.commit_request(batch, chunks))
        time.sleep(delay)
        broker.kill()
        published = visible_in_files(broker) - before
        broker.start()
        sink.cluster.drop(broker.broker)
        if sink.state() < batch:  # the kill came before the intent, or the start is finishing it
            retried = [sink.prepare(batch, n, part, attempt=1) for n, part in enumerate(rows)]
            sink.commit(batch, [chunk for chunk in retried if chunk])
        assert sink.state() == batch
        expected.update(row for part in rows for row in part)
        assert stored_rows(broker) == expected
        before = expected.total()
        if 0 < published < chunks_in_batch * rows_in_chunk:
            return
        delay *= 0.5 if published else 1.5
    pytest.fail("no kill came in the middle of a commit")
