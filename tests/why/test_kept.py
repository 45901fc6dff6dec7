"""What is remembered for `why` survives SIGKILL, stays small, and needs the right to read it."""

import asyncio
import json
from pathlib import Path

import pytest
from access.guarded import Asker, guarded_broker, make_topics, send_fields
from peers.aerobee_broker import AerobeeBroker
from waiting import until

from aerobee import connect
from aerobee.broker.base.clock import Clock
from aerobee.broker.services.why import history as kept
from aerobee.broker.services.why.history import History
from aerobee.broker.services.why.samples import PAIRS_MAX, passed_between, thinned
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.message_facts import EXPLAIN_MESSAGE, decode
from aerobee.testing import EmbeddedBroker
from why.group_verdicts import verdict_for


async def test_what_was_seen_before_sigkill_is_reported_after_it(tmp_path: Path) -> None:
    with AerobeeBroker(tmp_path, flushConsumerOffsetInterval="200") as broker:
        url = f"mq://{broker.namesrv}"
        async with connect(url) as mq:
            await mq.admin.create_topic("orders", queues=1)
            async with mq.consumer("orders", group="audit", tags="big") as inbox:
                small = await mq.send("orders", b"1", tag="small")
                await mq.send("orders", b"2", tag="big")
                await (await anext(aiter(inbox))).ack()
            skipped = await mq.send("orders", b"3", tag="big")
            await mq.admin.reset("audit", "orders", "last")

            async def both() -> bool:
                one = verdict_for(await mq.why(small.message_id), "audit").verdict
                two = verdict_for(await mq.why(skipped.message_id), "audit").verdict
                return (one, two) == ("filtered", "skipped_by_reset")

            await until(both, 20)
            kept_file = broker.store / "config" / "whyHistory.json"
            names = [kept_file, kept_file.with_name("whyHistory.json.journal")]

            def is_noted() -> bool:
                text = b"".join(path.read_bytes() for path in names if path.exists())
                return all(word in text for word in (b'"commits"', b'"was"', b'"big"'))

            await until(is_noted, 30)
        await asyncio.to_thread(broker.kill_and_start)
        async with connect(url, wait=20) as mq:
            answer = await mq.why(small.message_id)
            assert verdict_for(answer, "audit").verdict == "filtered", answer.as_dict()
            assert verdict_for(answer, "audit").facts["expression"] == "big"
            answer = await mq.why(skipped.message_id)
            assert verdict_for(answer, "audit").verdict == "skipped_by_reset", answer.as_dict()


async def test_a_user_who_may_read_a_topic_may_query_its_messages_and_no_others(
    tmp_path: Path,
) -> None:
    async with guarded_broker(tmp_path) as app, Asker.connected(app.broker_port) as asker:
        await make_topics(app, "t", "other")
        ids = {}
        for topic in ("t", "other"):
            ids[topic] = f"{'A' if topic == 't' else 'B'}" * 32
            fields = send_fields(topic, i=f"UNIQ_KEY\x01{ids[topic]}\x02")
            assert (await asker.ask("root", 310, fields, b"x")).code == 0

        async def ask(user: str, **ext: str) -> Command:
            return await asker.ask(user, EXPLAIN_MESSAGE, ext)

        answer = await ask("reader", msgId=ids["t"], topic="t")
        assert [copy.topic for copy in decode(answer.body).copies] == ["t"]
        assert decode((await ask("reader", msgId=ids["other"], topic="t")).body).copies == []
        for refused in ({"topic": "other"}, {}):
            assert (await ask("reader", msgId=ids["other"], **refused)).code == 16
        assert (await ask("nothing", msgId=ids["t"], topic="t")).code == 16
        found = decode((await ask("root", msgId=ids["other"])).body)
        assert [copy.topic for copy in found.copies] == ["other"]


def test_samples_stay_few_and_still_tell_when_an_offset_was_passed() -> None:
    samples: list[int] = []
    for tick in range(10_000):
        samples = thinned([*samples, tick * 5000, tick * 10])
    assert len(samples) == 2 * PAIRS_MAX
    assert samples[:2] == [0, 0] and samples[-2:] == [9999 * 5000, 99_990]
    assert passed_between(samples, 99_985) == (9998 * 5000, 9999 * 5000)  # the newest to the second
    found = passed_between(samples, 50_000)
    assert found is not None
    before, after = found
    assert before is not None and before <= 5000 * 5000 <= after
    assert passed_between(samples, 99_990) is None


def test_samples_are_thinned_also_after_the_clock_was_set_back() -> None:
    full = [number for tick in range(PAIRS_MAX) for number in (tick * 5000, tick * 10)]
    for moment in range(0, PAIRS_MAX * 5000, 5000):
        for now in (moment - 1, moment, moment + 1):
            samples = thinned([*full, now, 1000])
            assert len(samples) == 2 * PAIRS_MAX and samples[-2:] == [now, 1000]


def test_the_tables_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "ROWS_MAX", 100)
    history = History(str(tmp_path / "whyHistory.json"), Clock())
    for number in range(300):
        history.began(f"t@g{number}", 0, number)
        for move in range(50):
            history.reset(f"t@g{number}", 0, move, move + 1, "x")
    history.stop()
    history.file.stop()
    content = json.loads((tmp_path / "whyHistory.json").read_text())
    assert [len(content[table]) for table in ("queues", "resets")] == [100, 100]
    assert {len(moves) for moves in content["resets"].values()} == {20}
    again = History(str(tmp_path / "whyHistory.json"), Clock())
    again.load()
    assert again.queue("t@g299", 0)["began"][1] == 299 and again.queue("t@g1", 0) == {}


@pytest.mark.parametrize(
    "wrong", ['{"groups": 3}', '{"removed": {"x": {}}}', '{"resets": {"a": 1}}']
)
def test_a_file_that_somebody_edited_is_read_as_far_as_it_can_be(
    tmp_path: Path, wrong: str
) -> None:
    path = tmp_path / "whyHistory.json"
    path.write_text(wrong)
    history = History(str(path), Clock())
    history.load()
    assert history.removed_at(5) is None and history.resets("a", 0) == []


async def test_a_new_topic_of_the_same_name_begins_with_no_history(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)
        await mq.send("orders", b"1")
        await mq.admin.create_group("late")
        async with mq.consumer("orders", group="late", start="last") as inbox:
            await mq.send("orders", b"2")
            await (await anext(aiter(inbox))).ack()
        await mq.admin.delete_topic("orders")
        await mq.admin.create_topic("orders", queues=1)
        receipt = await mq.send("orders", b"3")
        async with mq.consumer("orders", group="late", start="first") as inbox:
            await (await anext(aiter(inbox))).ack()
        answer = await mq.why(receipt.message_id)
        assert verdict_for(answer, "late").verdict == "consumed", answer.as_dict()


def test_what_is_past_the_end_of_a_shorter_log_is_forgotten(tmp_path: Path) -> None:
    history = History(str(tmp_path / "whyHistory.json"), Clock())
    history.began("t@g", 0, 10)
    history.reset("t@g", 0, 5, 10, "x")
    history.began("t@g", 1, 10)
    history.reset_past_end(lambda _topic, queue_id: 7 if queue_id == 0 else 10)
    assert history.queue("t@g", 0) == {} and history.resets("t@g", 0) == []
    assert history.queue("t@g", 1)["began"][1] == 10
