"""Every verdict of `why` by a real flow: a real broker in this process, real clients."""

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from aerobee import Client, ConsumerOptions, Message, Misuse, Receipt, Verdict, Why, WhyVerdict
from aerobee.broker.store.files.real_disk import RealFile
from aerobee.testing import EmbeddedBroker
from why.group_verdicts import verdict_for


async def verdict(
    mq: Client, message_id: str, group: str | None = None, topic: str | None = None
) -> str:
    answer = await mq.why(message_id, topic, group)
    found = answer.of(group or "*") or answer.groups[0]
    assert found.text and isinstance(found.facts, dict)
    return found.verdict.value


async def becomes(mq: Client, message_id: str, group: str, wanted: str) -> Why:
    """Wait until the group's verdict is this one."""
    last = []

    async def is_so() -> bool:
        last.append(await mq.why(message_id, group=group))
        return verdict_for(last[-1], group).verdict.value == wanted

    try:
        await until(is_so, 20)
    except AssertionError:
        raise AssertionError(f"{last[-1].as_dict()}") from None
    return last[-1]


async def read_all(mq: Client, topic: str, group: str, count: int, **options: Any) -> list[bytes]:
    """Take `count` messages as a group, and leave."""
    bodies = []
    async with mq.consumer(topic, group=group, **options) as inbox:
        async for message in inbox:
            bodies.append(message.body)
            await message.ack()
            if len(bodies) == count:
                break
    return bodies


async def test_what_nobody_has_is_not_found(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"1")
        answer = await mq.why("7F00000100002A9F0000000000099999")
        assert answer.as_dict()["groups"][0]["verdict"] == "not_found"
        assert not answer.is_found and answer.life == ()


async def test_without_a_reader_there_is_no_group(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        receipt = await mq.send("orders", b"1")
        assert await verdict(mq, receipt.message_id) == "no_group"
        assert await verdict(mq, receipt.message_id, "billing") == "no_group"
        [event] = (await mq.why(receipt.message_id)).as_dict()["life"]
        assert event["event"] == "stored" and event["topic"] == "orders"
        assert (event["queue"], event["offset"]) == (receipt.queue.queue_id, receipt.queue_offset)


async def test_what_was_read_and_acknowledged_is_consumed(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        receipt = await mq.send("orders", b"1")
        assert await read_all(mq, "orders", "billing", 1) == [b"1"]
        await becomes(mq, receipt.message_id, "billing", "consumed")
        await aerobee_broker.advance(seconds=6)  # commits are noted every 5 s
        facts = verdict_for(await mq.why(receipt.message_id), "billing").facts
        assert facts["passed_before"] is not None and facts["matches"] is True
        found = await mq.message(receipt.message_id, topic="orders")
        assert await verdict(mq, found.offset_message_id, "billing") == "consumed"


async def test_what_a_member_has_in_hand_is_sent_and_what_is_behind_it_behind(
    aerobee_broker: EmbeddedBroker,
) -> None:
    options = ConsumerOptions(pull_count=1, prefetch_count=1)
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)
        first, second = [await mq.send("orders", body) for body in (b"1", b"2")]
        third = await mq.send("orders", b"3")
        async with mq.consumer("orders", group="billing", options=options) as inbox:
            message = await anext(aiter(inbox))
            answer = await becomes(mq, first.message_id, "billing", "sent")
            assert verdict_for(answer, "billing").facts["client"] == mq.client_id
            del second
            answer = await becomes(mq, third.message_id, "billing", "behind")
            assert verdict_for(answer, "billing").facts["behind"] == 2
            await message.ack()


async def test_a_group_that_has_left_is_offline(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"1")
        await read_all(mq, "orders", "billing", 1)
        receipt = await mq.send("orders", b"2")
        answer = await becomes(mq, receipt.message_id, "billing", "offline")
        assert verdict_for(answer, "billing").facts["left_at"] is not None
        assert verdict_for(answer, "billing").facts["left_by"] == mq.client_id


async def test_what_tags_leave_out_is_filtered_and_stays_so_when_the_tags_change(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.consumer("orders", group="audit", tags="big") as inbox:
            small = await mq.send("orders", b"1", tag="small")
            await mq.send("orders", b"2", tag="big")
            message = await anext(aiter(inbox))
            assert message.body == b"2"
            await message.ack()
        before = await becomes(mq, small.message_id, "audit", "filtered")
        assert (
            "small" in verdict_for(before, "audit").text
            and "big" in verdict_for(before, "audit").text
        )
        # Now the group wants it, but it has passed it.
        async with mq.consumer("orders", group="audit", tags="small") as inbox:
            later = await mq.send("orders", b"3", tag="small")
            message = await anext(aiter(inbox))
            assert message.body == b"3"
            await message.ack()
        await becomes(mq, later.message_id, "audit", "consumed")
        after = await mq.why(small.message_id, group="audit")
        assert verdict_for(after, "audit").verdict is WhyVerdict.FILTERED
        assert verdict_for(after, "audit").facts["expression"] == "big"


async def test_what_sql_leaves_out_is_filtered_by_the_term_that_says_so(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)
        sql = "region = 'eu' AND amount > 100"
        async with mq.consumer("orders", group="audit", sql=sql) as inbox:
            small = await mq.send("orders", b"1", properties={"region": "eu", "amount": "20"})
            await mq.send("orders", b"2", properties={"region": "eu", "amount": "200"})
            await (await anext(aiter(inbox))).ack()
        answer = await becomes(mq, small.message_id, "audit", "filtered")
        assert "amount > 100 is false (amount = 20)" in verdict_for(answer, "audit").text


async def test_members_that_differ_are_a_conflict(aerobee_broker: EmbeddedBroker) -> None:
    async with (
        aerobee_broker.connect() as one,
        aerobee_broker.connect() as two,
        one.consumer("orders", group="audit", tags="a"),
        two.consumer("orders", group="audit", tags="b"),
    ):
        receipt = await one.send("orders", b"1", tag="b")
        answer = await becomes(one, receipt.message_id, "audit", "conflict")
        assert len(verdict_for(answer, "audit").facts["subscriptions"]) == 2


async def test_a_group_that_is_paused_and_one_that_is_forbidden(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"1")
        await read_all(mq, "orders", "billing", 1)
        receipt = await mq.send("orders", b"2")
        await mq.admin.create_group("billing", consume_enabled=False)
        await becomes(mq, receipt.message_id, "billing", "paused")
        await mq.admin.create_group("billing")
        await mq.admin.update_topic("orders", readable=False)
        answer = await becomes(mq, receipt.message_id, "billing", "forbidden")
        assert "perm" in verdict_for(answer, "billing").text


async def test_a_reset_over_it_skips_and_one_back_makes_it_readable_again(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)
        await mq.send("orders", b"1")
        await read_all(mq, "orders", "billing", 1)
        receipt = await mq.send("orders", b"2")
        await mq.admin.reset("billing", "orders", "last")
        answer = await becomes(mq, receipt.message_id, "billing", "skipped_by_reset")
        assert (
            verdict_for(answer, "billing").facts["was"],
            verdict_for(answer, "billing").facts["to"],
        ) == (1, 2)
        assert verdict_for(answer, "billing").facts["by"].startswith("127.0.0.1:")
        await mq.admin.reset("billing", "orders", "first")
        await becomes(mq, receipt.message_id, "billing", "offline")
        assert await read_all(mq, "orders", "billing", 2) == [b"1", b"2"]
        await becomes(mq, receipt.message_id, "billing", "consumed")


async def test_what_was_there_before_a_group_began_at_the_end_is_skipped(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)
        receipt = await mq.send("orders", b"1")
        async with mq.consumer("orders", group="late", start="last") as inbox:
            await mq.send("orders", b"2")
            message = await anext(aiter(inbox))
            assert message.body == b"2"
            await message.ack()
        answer = await becomes(mq, receipt.message_id, "late", "skipped_by_reset")
        assert verdict_for(answer, "late").facts["began"] == 1


async def test_a_retry_that_waits_then_comes_then_is_consumed(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        receipt = await mq.send("orders", b"1")
        async with mq.consumer("orders", group="billing") as inbox:
            messages = aiter(inbox)
            await (await anext(messages)).retry(delay=60, reason="no card today")
            answer = await becomes(mq, receipt.message_id, "billing", "in_retry")
            facts = verdict_for(answer, "billing").facts
            assert facts["attempt"] == 1 and facts["attempts_max"] == 16
            assert facts["due_at"] - facts["given_back_at"] in range(59_000, 61_001)
            assert "no card today" in verdict_for(answer, "billing").text
            await aerobee_broker.advance(seconds=61)
            again = await anext(messages)
            await becomes(mq, receipt.message_id, "billing", "sent")
            await again.ack()
        answer = await becomes(mq, receipt.message_id, "billing", "consumed")
        events = [event.event for event in answer.life]
        assert events == ["stored", "given_back", "retried"]


async def test_a_dead_letter_says_since_when_and_why(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        receipt = await mq.send("orders", b"1")
        async with mq.consumer("orders", group="billing") as inbox:
            await (await anext(aiter(inbox))).reject("no such customer")
            answer = await becomes(mq, receipt.message_id, "billing", "dead")
        assert "no such customer" in verdict_for(answer, "billing").text
        assert "dlq replay billing" in verdict_for(answer, "billing").remedy
        assert [event.event for event in answer.life] == ["stored", "dead"]


async def test_a_broadcasting_group_keeps_its_own_progress(
    aerobee_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    options = ConsumerOptions(state_path=tmp_path / "offsets.json")
    async with (
        aerobee_broker.connect() as mq,
        mq.consumer("orders", group="caches", broadcast=True, options=options),
    ):
        receipt = await mq.send("orders", b"1")
        await becomes(mq, receipt.message_id, "caches", "broadcast")


async def test_a_timer_waits_is_recalled_or_is_delivered(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"0")
        kept, taken = [await mq.send("orders", body, delay=3600) for body in (b"1", b"2")]
        answer = await mq.why(kept.message_id)
        assert answer.groups[0].verdict is WhyVerdict.WAITING_TIMER
        assert answer.groups[0].facts["due_at"] > answer.life[0].at
        assert taken.recall_handle is not None
        await mq.recall("orders", taken.recall_handle)
        assert await verdict(mq, taken.message_id) == "recalled"
        await aerobee_broker.advance(hours=2)
        assert await verdict(mq, kept.message_id) == "no_group"
        events = [event.event for event in (await mq.why(kept.message_id)).life]
        assert events == ["delayed", "delivered"]
        assert await verdict(mq, taken.message_id) == "recalled"


async def test_a_half_message_is_open_then_committed_rolled_back_or_given_up(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async def check(message: Message) -> Verdict:
        return Verdict.UNKNOWN

    async with (
        aerobee_broker.connect() as mq,
        mq.transactions("orders", group="pay", check=check) as transactions,
    ):
        async with transactions.begin(b"1") as half:
            assert await verdict(mq, half.receipt.message_id) == "half_open"
        committed = half.receipt.message_id
        assert await verdict(mq, committed) == "no_group"
        assert [one.event for one in (await mq.why(committed)).life] == ["half", "committed"]
        async with transactions.begin(b"2") as half:
            half.rollback()
        assert await verdict(mq, half.receipt.message_id) == "rolled_back"
        async with transactions.begin(b"3") as half:
            half.verdict = Verdict.UNKNOWN
        lost = half.receipt.message_id

        async def is_given_up() -> bool:
            await aerobee_broker.advance(minutes=1)
            return await verdict(mq, lost) == "given_up"

        await until(is_given_up, 60)


async def test_what_a_deleted_topic_left_in_the_log_is_not_visible(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        receipt = await mq.send("orders", b"1")
        await mq.admin.delete_topic("orders")
        assert await verdict(mq, receipt.message_id, topic="orders") == "not_visible"


@pytest.mark.usefixtures("group_commit_in_python")
async def test_with_sync_flush_what_is_not_on_disk_is_not_flushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, sync = threading.Event(), RealFile.sync
    gate.set()

    def held(file: RealFile) -> None:
        if "commitlog" in file.path:
            assert gate.wait(60), "the test did not let go"
        sync(file)

    monkeypatch.setattr(RealFile, "sync", held)
    async with EmbeddedBroker(flushDiskType="SYNC_FLUSH") as broker, broker.connect() as mq:
        await mq.send("orders", b"1")
        gate.clear()
        try:
            message_id = await mq.send_oneway("orders", b"2")
            await until(lambda: _seen(mq, message_id), 20)
            assert await verdict(mq, message_id) == "not_flushed"
        finally:
            gate.set()
        await until(lambda: _is(mq, message_id, "no_group"), 20)


async def _seen(mq: Client, message_id: str) -> bool:
    return (await mq.why(message_id)).is_found


async def _is(mq: Client, message_id: str, wanted: str) -> bool:
    return await verdict(mq, message_id) == wanted


async def test_what_retention_has_removed_is_expired(tmp_path: Path) -> None:
    hours = ";".join(str(hour) for hour in range(24))
    settings = {"mappedFileSizeCommitLog": 1 << 20, "fileReservedTime": 1, "deleteWhen": hours}
    async with EmbeddedBroker(tmp_path, **settings) as broker:
        async with broker.connect() as mq:
            first = await mq.send("orders", b"1")
            offset_id = (await mq.message(first.message_id, topic="orders")).offset_message_id
            for _ in range(30):
                await mq.send("orders", os.urandom(100_000), timeout=10)
            await broker.advance(hours=3)
            for wanted in (first.message_id, offset_id):
                await until(partial(_is, mq, wanted, "expired"), 20)
        await broker.restart()  # what is remembered is on disk
        async with broker.connect() as mq:
            answer = await mq.why(first.message_id)
            assert answer.groups[0].verdict is WhyVerdict.EXPIRED
            assert answer.groups[0].facts["reason"] == "age"
            assert answer.life[-1].event == "removed"


async def test_without_evidence_it_is_unknown(aerobee_broker: EmbeddedBroker) -> None:
    """The group's filter changed while the message was fetched and not acknowledged: nothing says
    under which of the two it was finished."""
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)
        async with mq.consumer("orders", group="audit", tags="a") as inbox:
            await mq.send("orders", b"0", tag="a")
            receipt = await mq.send("orders", b"1", tag="a")
            taken = await inbox.get_batch(2, 10)
            while len(taken) < 2:
                taken += await inbox.get_batch(1, 10)
            async with (
                aerobee_broker.connect() as other,
                other.consumer("orders", group="audit", tags="b"),
            ):
                await until(lambda: _is_of(mq, receipt, "audit", "conflict"), 20)
                for message in taken:
                    await message.ack()
        await becomes(mq, receipt.message_id, "audit", "unknown")


async def _is_of(mq: Client, receipt: Receipt, group: str, wanted: str) -> bool:
    return await verdict(mq, receipt.message_id, group) == wanted


@pytest.mark.parametrize("wrong", ["", "ä"])
async def test_what_cannot_be_an_id_is_refused(aerobee_broker: EmbeddedBroker, wrong: str) -> None:
    async with aerobee_broker.connect() as mq:
        with pytest.raises(Misuse):
            await mq.why(wrong)
