"""Transactions on a real store: ends, doubles, crashes, upstream's op messages."""

from pathlib import Path

import pytest
from services.services_world import START_MS, World

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.transactions import checks
from aerobee.broker.services.transactions.ops import op_offsets
from aerobee.broker.services.transactions.service import EndRequest, Transactions
from aerobee.broker.store.results import PutResult
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import TRANSACTION_COMMIT, TRANSACTION_MASK, Message
from aerobee.protocol.names import (
    TRANSACTION_GROUP,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)


def half(world: World, body: bytes = b"x", **more: str) -> PutResult:
    properties = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": body.hex()} | more
    return world.send("T", body, queue_id=1, **properties)


def end(world: World, sent: PutResult, *, commit: bool = True, group: str = "p") -> None:
    request = EndRequest(group, sent.queue_offset, sent.physical_offset, commit)
    assert world.transactions.end(request).ok
    world.dispatch()


def checked_copy(world: World, checks: int = 1) -> PutResult:
    """What the check does to the only open transaction."""
    assert world.transactions.prepare()
    world.transactions.read_halves()
    ((root, queue_offset),) = world.transactions.open_halves()
    message = world.transactions.half_at(root, queue_offset)
    assert message is not None
    copied = world.transactions.copy(root, message, checks)
    assert copied is not None
    world.dispatch()
    return copied


def test_a_half_message_is_seen_by_nobody_until_its_commit(world: World) -> None:
    sent = half(world, KEYS="k")
    assert world.read("T", 1) == []
    end(world, sent)
    (message,) = world.read("T", 1)
    assert bytes(message.body) == b"x" and message.born_timestamp == START_MS
    assert message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    assert message.prepared_transaction_offset == sent.physical_offset
    found = message.property_map()
    assert (found["TRAN_MSG"], found["KEYS"], found["__transactionId__"]) == ("true", "k", "78")


def test_a_rollback_delivers_nothing_and_a_later_commit_is_refused(world: World) -> None:
    sent = half(world)
    end(world, sent, commit=False)
    with pytest.raises(Refused, match="not open any more"):
        end(world, sent)
    assert world.read("T", 1) == []


def test_the_op_message_is_in_the_form_that_4_and_5_read(world: World) -> None:
    half(world, b"a")
    end(world, half(world, b"b"))
    (op,) = world.read(TRANSACTION_OP_TOPIC)
    assert (bytes(op.body), op.property(props.TAGS)) == (b"1", "d")


@pytest.mark.parametrize("body", [b"12", b"12,", b"12,15,", b",12,x,-3,15"])
def test_both_forms_of_op_messages_are_read(body: bytes) -> None:
    assert op_offsets(body) == ([12, 15] if b"15" in body else [12])


def test_a_commit_while_a_check_is_under_way_is_delivered_once(world: World) -> None:
    sent = half(world)
    copied = checked_copy(world)
    end(world, sent)  # the producer's own commit, on its way when the check came
    with pytest.raises(Refused, match="not open any more"):
        end(world, copied)  # its answer to the check
    assert len(world.read("T", 1)) == 1


def test_the_answer_to_a_check_and_the_late_commit_deliver_once(world: World) -> None:
    sent = half(world)
    copied = checked_copy(world)
    again = checked_copy(world, 2)
    end(world, again)
    for late in (sent, copied):
        with pytest.raises(Refused, match="not open any more"):
            end(world, late)
    assert len(world.read("T", 1)) == 1


@pytest.mark.parametrize("killed_after", ["half", "copy", "commit", "both"])
def test_a_kill_at_any_moment_leaves_one_delivery(world: World, killed_after: str) -> None:
    sent = half(world)
    if killed_after == "half":
        world.reopen_after_kill()
    copied = checked_copy(world) if killed_after in ("copy", "both") else sent
    if killed_after in ("copy", "both"):
        world.reopen_after_kill()
    end(world, sent)
    if killed_after in ("commit", "both"):
        world.reopen_after_kill()
    for late in (sent, copied):
        with pytest.raises(Refused, match="not open any more"):
            end(world, late)
    assert len(world.read("T", 1)) == 1 and world.transactions.open_count == 0


def reopen_unprepared(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reopen after a kill, with queues still catching up."""
    with monkeypatch.context() as catching_up:
        catching_up.setattr(Transactions, "prepare", lambda _: False)
        world.reopen_after_kill()


def commit_without_op(world: World, sent: PutResult) -> None:
    """The message of a commit is stored; its op is lost with the process."""
    delivered = world.message("T", b"x", queue_id=1, PGROUP="p", UNIQ_KEY="78")
    delivered.sys_flag = TRANSACTION_COMMIT
    delivered.prepared_transaction_offset = sent.physical_offset
    assert world.store.put([delivered])[0].ok
    world.dispatch()


@pytest.mark.parametrize("before_the_end", ["nothing", "a send", "a send and a kill"])
def test_a_kill_between_the_message_and_its_op_is_mended(world: World, before_the_end: str) -> None:
    sent = half(world)
    commit_without_op(world, sent)
    world.reopen_after_kill()
    if before_the_end != "nothing":
        world.send("T", b"other", queue_id=1)
        world.send("Other")
    if before_the_end == "a send and a kill":
        world.reopen_after_kill()
    with pytest.raises(Refused, match="not open any more"):
        end(world, sent)
    assert [bytes(message.body) for message in world.read("T", 1)].count(b"x") == 1


def test_a_kill_between_the_message_and_its_op_is_mended_once_the_queues_are_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = half(world)
    commit_without_op(world, sent)
    reopen_unprepared(world, monkeypatch)
    world.send("T", b"other", queue_id=1)
    with pytest.raises(Refused, match="not open any more"):
        end(world, sent)
    assert [bytes(message.body) for message in world.read("T", 1)].count(b"x") == 1


def test_a_kill_between_a_copy_and_the_op_of_the_older_one_leaves_one_delivery(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def put_without_op(self: Transactions, message: Message, *_: object) -> None:
        assert self._store.put([message])[0].ok
        raise Killed

    sent = half(world)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Transactions, "_put_both", put_without_op)
        checked_copy(world)
    world.reopen_after_kill()
    end(world, sent)
    world.reopen_after_kill()
    with pytest.raises(Refused, match="not open any more"):
        end(world, sent)
    assert len(world.read("T", 1)) == 1 and world.transactions.open_count == 0
    world.transactions.write_due_ops()
    world.dispatch()
    ended = sorted(bytes(op.body) for op in world.read(TRANSACTION_OP_TOPIC))
    assert ended == [b"0", b"1"]  # for a Java broker both copies are done


def test_ops_of_a_java_broker_count(world: World) -> None:
    sent = [half(world, b"%d" % number) for number in range(3)]
    op = Message(TRANSACTION_OP_TOPIC, 0, b"0,2,", props.encode({"TAGS": "d"}))
    assert world.store.put([op])[0].ok
    world.dispatch()
    world.reopen_after_kill()
    assert world.transactions.prepare() and world.transactions.open_count == 1
    end(world, sent[1])
    with pytest.raises(Refused):
        end(world, sent[2])


def test_the_progress_passes_what_is_done_and_waits_for_the_disk(world: World) -> None:
    sent = [half(world, b"%d" % number) for number in range(5)]
    for number in (0, 1, 3):
        end(world, sent[number])
    world.transactions.read_halves()
    world.transactions.commit_progress()
    assert world.offsets.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0) == -1
    world.store.flush.step()
    world.transactions.commit_progress()
    assert world.offsets.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0) == 2
    assert (
        world.offsets.query(TRANSACTION_GROUP, TRANSACTION_OP_TOPIC, 0) == 2
    )  # the op of 3 is still needed
    world.stop()
    world.open()
    assert world.transactions.prepare() and world.transactions.open_count == 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"group": "other"}, "producer group wrong"),
        ({"queue_offset": 7}, "state table offset wrong"),
        ({"physical_offset": 1}, "no half message begins"),
    ],
)
def test_an_end_of_something_else_is_refused(
    world: World, change: dict[str, object], text: str
) -> None:
    sent = half(world)
    request = EndRequest("p", sent.queue_offset, sent.physical_offset, True)
    with pytest.raises(Refused, match=text):
        world.transactions.end(request._replace(**change))  # type: ignore[arg-type]


def test_an_ordinary_message_cannot_be_committed(world: World) -> None:
    sent = world.send("T", PGROUP="p", REAL_TOPIC="U", REAL_QID="0")
    with pytest.raises(Refused, match="no half message"):
        end(world, sent)


def test_a_client_cannot_forge_the_root_or_the_count_of_checks(world: World) -> None:
    first = half(world, b"a")
    second = half(world, b"b", TRAN_PREPARED_QUEUE_OFFSET="0", TRANSACTION_CHECK_TIMES="99")
    end(world, second)
    end(world, first)
    assert world.bodies("T", 1) == [b"b", b"a"]


def test_a_committed_message_can_be_delayed(world: World) -> None:
    sent = half(world, DELAY="1")
    end(world, sent)
    assert world.read("T", 1) == []
    world.advance(1)
    world.run_schedule()
    assert world.bodies("T", 1) == [b"x"]


def test_transactions_can_be_refused_by_setting(world: World) -> None:
    world.settings.reject_transaction_message = True
    with pytest.raises(Refused, match="rejectTransactionMessage") as caught:
        half(world)
    assert caught.value.code == 16


def test_a_half_message_can_be_ended_while_it_is_in_the_transient_store_pool(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "store", transient_store_pool_enable=True)
    end(world, half(world))
    assert world.store.commit is not None
    world.store.commit.step()
    world.dispatch()
    assert world.bodies("T", 1) == [b"x"]
    world.close_quietly()


@pytest.mark.parametrize("why", [{"PGROUP": "gone"}, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "86400"}])
def test_one_that_no_producer_can_decide_holds_up_neither_progress_nor_memory(
    world: World, monkeypatch: pytest.MonkeyPatch, why: dict[str, str]
) -> None:
    monkeypatch.setattr(checks, "BEHIND_MAX", 50)
    old = half(world, b"old", **why)
    most = 0
    for number in range(400):
        end(world, half(world, b"%d" % number))
        if number % 20 == 19:
            world.advance(30)
            world.checks.step(world.clock.now_ms())
            world.dispatch()
            world.store.flush.step()
            most = max(most, len(world.transactions._ops))
    world.checks.step(world.clock.now_ms())
    assert world.transactions.open_count == 1
    assert most < 120
    assert world.offsets.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0) > 300
    world.offsets.file.save()
    world.reopen_after_kill()
    assert world.transactions.prepare()
    ((root, newest),) = world.transactions.open_halves()
    message = world.transactions.half_at(root, newest)
    assert message is not None and message.property(props.TRANSACTION_CHECK_TIMES) == "0"
    end(world, old, group=why.get("PGROUP", "p"))  # its first copy is as good as the last
    assert world.bodies("T", 1).count(b"old") == 1


@pytest.mark.parametrize("topic", [TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC])
def test_a_damaged_record_hides_none_behind_it(
    world: World, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [half(world, b"%d" % number) for number in range(6)]
    for number in range(3):
        end(world, sent[number])
    reopen_unprepared(world, monkeypatch)
    entry = world.store.queue_entry(topic, 0, 1)
    assert entry is not None
    world.damage(entry[0], 4, b"\xff\xff\xff\xff")
    world.checks.step(world.clock.now_ms())
    lost = topic == TRANSACTION_OP_TOPIC  # the lost op: the second one had ended
    assert [root for root, _ in world.transactions.open_halves()] == [1] * lost + [3, 4, 5]


@pytest.mark.parametrize("by", ["check", "commit"])
def test_one_whose_message_cannot_be_stored_again_stays_open_over_a_restart(
    world: World, by: str
) -> None:
    filler = "f" * (props.PROPERTIES_SIZE_MAX - 160)
    sent = half(world, filler=filler, TIMER_DELIVER_MS=str(START_MS + 86_400_000))
    if by == "check":
        assert world.transactions.prepare()
        message = world.transactions.half_at(0, 0)
        assert message is not None and world.transactions.copy(0, message, 1) is None
    else:
        with pytest.raises(Refused, match="it stays open"):
            end(world, sent)
    world.dispatch()
    world.reopen_after_kill()
    assert world.transactions.prepare() and world.transactions.open_count == 1


def test_very_many_that_no_producer_can_decide_are_not_copied_round_by_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "BEHIND_MAX", 50)
    for number in range(120):
        half(world, b"%d" % number, PGROUP="gone")
    for _ in range(5):
        world.advance(30)
        world.checks.step(world.clock.now_ms())
        world.dispatch()
    assert world.store.max_offset(TRANSACTION_HALF_TOPIC, 0) == 120


def test_a_check_of_large_half_messages_lets_others_have_their_turn(world: World) -> None:
    for number in range(20):
        half(world, bytes(1 << 20), UNIQ_KEY=str(number))
    world.advance(30)
    turns = sum(1 for _ in world.checks._round(world.clock.now_ms()))
    assert turns >= 4


def test_open_ones_behind_many_damaged_records_are_found(world: World) -> None:
    half(world, b"first")
    queue = world.store.queue_table.get(TRANSACTION_HALF_TOPIC, 0)
    assert queue is not None
    queue.assigned += 2000  # their slots are blank once the queue is built again
    half(world, b"last")
    world.reopen_after_kill()
    assert world.transactions.prepare()
    assert [root for root, _ in world.transactions.open_halves()] == [0, 2001]
