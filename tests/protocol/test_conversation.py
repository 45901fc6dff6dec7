"""One end of a connection without a socket: output, answers by request, timing."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK, Command
from aerobee.protocol.wire.conversation import OPAQUE_MAX, Conversation, Parts, frame_parts
from aerobee.protocol.wire.frame import FRAME_SIZE_MAX, FrameDecoder, encode_frame
from aerobee.protocol.wire.signing import Credentials, signature

Answer = Future[Command]
Talk = Conversation[Answer]
Slices = Callable[[bytes], Iterator[bytes]]


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def byte_by_byte(data: bytes) -> Iterator[bytes]:
    for position in range(len(data)):
        yield data[position : position + 1]


any_slices = pytest.mark.parametrize("slices", [whole, byte_by_byte])


def received(conversation: Talk, slices: Iterator[bytes]) -> list[Command]:
    return [request for data in slices for request in conversation.receive(data)]


def read(parts: Parts) -> Command:
    [(codec, header, body)] = FrameDecoder().feed(b"".join(parts))
    return decode_command(codec, header, body)


def asked(
    conversation: Talk, code: int = 1, now: float = 0.0, seconds: float = math.inf
) -> tuple[Command, Answer]:
    """A request as the other end reads it, and the task that waits for its answer."""
    waiter: Answer = Future()
    return read(conversation.request(Command(code), waiter, now, seconds)), waiter


@any_slices
def test_each_answer_goes_to_its_request_in_whatever_order_they_come(slices: Slices) -> None:
    conversation = Talk()
    pairs = [asked(conversation, code) for code in range(5)]
    stream = b"".join(
        encode_frame(request.answer(0, {"to": str(request.code)}, b"body" * request.code))
        for request, _ in reversed(pairs)
    )
    assert received(conversation, slices(stream)) == []
    for code, (_, waiter) in enumerate(pairs):
        assert waiter.result(0).ext == {"to": str(code)}
        assert waiter.result(0).body == b"body" * code
    assert conversation.in_flight == 0 and conversation.error is None


@any_slices
def test_requests_of_the_other_end_come_out_and_its_answers_do_not(slices: Slices) -> None:
    conversation = Talk()
    request, waiter = asked(conversation)
    theirs = [Command(40, {"group": "g"}, opaque=request.opaque), Command(39, {}, b"half")]
    stream = encode_frame(theirs[0]) + encode_frame(request.answer(0)) + encode_frame(theirs[1])
    assert received(conversation, slices(stream)) == theirs
    assert waiter.result(0).code == 0


@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(1, 90), max_size=40))
def test_two_ends_that_both_ask_get_all_their_answers(codes: list[int], sizes: list[int]) -> None:
    ends = Talk(upgrade=True), Talk()
    waiters: list[Answer] = []
    streams = [b"", b""]  # to the second end, to the first
    for number, code in enumerate(codes):
        waiters.append(Future())
        side = number % 2
        streams[side] += b"".join(ends[side].request(Command(code), waiters[-1]))
    for step in range(2):  # the requests, then the answers to them
        answers = [b"", b""]
        for side, stream in enumerate(streams):
            for size in [*sizes, len(stream)]:
                data, stream = stream[:size], stream[size:]
                for request in ends[1 - side].receive(data):
                    assert step == 0
                    answers[1 - side] += b"".join(frame_parts(request.answer(request.code)))
        streams = answers
    assert [waiter.result(0).code for waiter in waiters] == codes


def test_an_answer_that_nobody_asked_for_is_dropped() -> None:
    conversation = Talk()
    request, waiter = asked(conversation)
    stray = request.answer(0)
    stray.opaque += 1
    assert conversation.receive(encode_frame(stray)) == []
    assert not waiter.done() and conversation.in_flight == 1


def test_a_second_answer_to_one_request_is_dropped() -> None:
    conversation = Talk()
    request, waiter = asked(conversation)
    conversation.receive(encode_frame(request.answer(7)) + encode_frame(request.answer(8)))
    assert waiter.result(0).code == 7 and conversation.error is None


def test_an_answer_that_comes_too_late_is_dropped_and_the_next_one_is_not() -> None:
    conversation = Talk()
    late, waiter = asked(conversation, 11, now=10.0, seconds=3.0)
    [expired] = conversation.expire(13.0)
    assert expired.waiter is waiter and (expired.code, expired.seconds) == (11, 3.0)
    request, next_waiter = asked(conversation)
    conversation.receive(encode_frame(late.answer(0)) + encode_frame(request.answer(0)))
    assert not waiter.done() and next_waiter.result(0).opaque == request.opaque != late.opaque


def test_only_what_is_overdue_expires_and_the_next_deadline_is_reported() -> None:
    conversation = Talk()
    assert conversation.next_deadline == math.inf and conversation.expire(1e9) == []
    _, pull = asked(conversation, 11, now=0.0, seconds=30.0)
    assert conversation.next_deadline == 30.0
    request, send = asked(conversation, 10, now=1.0, seconds=3.0)
    assert conversation.next_deadline == 4.0
    conversation.receive(encode_frame(request.answer(0)))
    assert conversation.expire(3.5) == []
    assert conversation.expire(4.0) == [] and conversation.next_deadline == 30.0
    assert [late.waiter for late in conversation.expire(30.0)] == [pull]
    assert conversation.next_deadline == math.inf and conversation.in_flight == 0
    assert send.done()


def test_a_timer_that_fires_a_trifle_early_finds_what_it_was_set_for() -> None:
    conversation = Talk()
    asked(conversation, now=1.0, seconds=0.1234)
    assert len(conversation.expire(1.123)) == 1


def test_a_waiter_that_gave_up_gets_neither_answer_nor_error() -> None:
    conversation = Talk()
    pairs = [asked(conversation, seconds=seconds) for seconds in (1.0, 2.0, 3.0)]
    for _, waiter in pairs:
        waiter.cancel()
    conversation.receive(encode_frame(pairs[0][0].answer(0)))
    assert conversation.expire(2.0) == [] and conversation.in_flight == 1
    assert conversation.end() == [] and conversation.in_flight == 0


def test_the_end_names_all_waiters() -> None:
    conversation = Talk()
    answered, _ = asked(conversation)
    waiters = [asked(conversation, seconds=seconds)[1] for seconds in (1.0, math.inf)]
    conversation.receive(encode_frame(answered.answer(0)))
    assert [pending.waiter for pending in conversation.end()] == waiters
    assert conversation.in_flight == 0 and conversation.next_deadline == math.inf


@any_slices
@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ((FRAME_SIZE_MAX + 1).to_bytes(4, "big") + bytes(4), "a frame takes 8 to 16777216 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n", "frame of 1213486160 bytes"),
        (b"\0\0\0\x06\0\0\0\x02{x", "the JSON header cannot be read"),
    ],
)
def test_after_bytes_that_are_no_frame_nothing_is_read(
    slices: Slices, bad: bytes, text: str
) -> None:
    conversation = Talk()
    first, answered = asked(conversation)
    second, unanswered = asked(conversation)
    theirs = Command(40)
    stream = encode_frame(first.answer(0)) + encode_frame(theirs) + bad
    stream += encode_frame(second.answer(0))
    assert received(conversation, slices(stream)) == [theirs]
    assert answered.result(0).code == 0 and not unanswered.done()
    assert isinstance(conversation.error, ProtocolError) and text in str(conversation.error)
    assert conversation.receive(encode_frame(second.answer(0))) == [] and not unanswered.done()


def test_a_request_that_cannot_be_written_leaves_nothing_pending() -> None:
    conversation = Talk()
    with pytest.raises(UnicodeEncodeError):
        conversation.request(Command(1, {"topic": "\udcff"}), Future(), 0.0, 3.0)
    assert conversation.in_flight == 0 and conversation.next_deadline == math.inf


def test_a_body_is_not_copied() -> None:
    body = memoryview(b"x" * 1000)
    head, written = Talk().request(Command(10, {}, body), Future())
    assert written is body and len(head) < 500


def test_a_oneway_has_its_bit_its_own_number_and_no_answer() -> None:
    conversation = Talk()
    first, _ = asked(conversation)
    oneway = read(conversation.oneway(Command(15)))
    assert oneway.is_oneway and oneway.opaque != first.opaque
    assert conversation.in_flight == 1


def test_numbers_stay_within_31_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = Talk()
    conversation._opaques = iter((OPAQUE_MAX, OPAQUE_MAX + 1))  # type: ignore[assignment]
    assert [asked(conversation)[0].opaque for _ in range(2)] == [OPAQUE_MAX, 0]


@pytest.mark.parametrize(
    ("upgrade", "language", "codec"),
    [(True, "PYTHON", MSGPACK), (True, "JAVA", JSON), (False, "PYTHON", JSON)],
)
def test_the_first_answer_decides_the_codec(upgrade: bool, language: str, codec: int) -> None:
    conversation = Talk(upgrade=upgrade)
    request, _ = asked(conversation)
    also, _ = asked(conversation)
    assert request.codec == also.codec == JSON
    for command, name, version in ((request, language, 401), (also, "GO", 7)):
        answer = command.answer(0)
        answer.language, answer.version = name, version
        conversation.receive(encode_frame(answer))
    assert asked(conversation)[0].codec == codec
    assert read(conversation.oneway(Command(1))).codec == codec
    assert conversation.peer_version == 401


def test_every_request_is_signed_and_each_time_it_is_sent() -> None:
    conversation = Talk(Credentials("key", "secret", "token"))
    command = Command(10, {"b": "topic", "a": "group"}, b"body")
    seen = [read(conversation.request(command, Future()))]
    command.ext["b"] = "another"
    seen += [read(conversation.oneway(command))]
    for sent in seen:
        assert sent.ext["AccessKey"] == "key" and sent.ext["SecurityToken"] == "token"
        expected = {name: value for name, value in sent.ext.items() if name != "Signature"}
        assert sent.ext["Signature"] == signature(expected, b"body", "secret")
    assert seen[0].ext["Signature"] != seen[1].ext["Signature"]
    assert "secret" not in repr(Credentials("key", "secret", "a secret token"))


def test_without_credentials_nothing_is_added() -> None:
    assert read(Talk().request(Command(10, {"b": "topic"}), Future())).ext == {"b": "topic"}


def test_a_request_that_was_written_late_has_its_whole_time_from_then_on() -> None:
    ours: Conversation[Future[Command]] = Conversation()
    waiters: list[Future[Command]] = [Future() for _ in range(3)]
    commands = [Command(10) for _ in range(3)]
    for command, waiter in zip(commands, waiters, strict=True):
        ours.request(command, waiter, now=100.0, seconds=3.0)
    ours.written_late(commands[1].opaque, now=105.0)
    assert [row.waiter for row in ours.expire(105.0)] == waiters[:1]
    assert ours.expire(107.9) == []
    assert len(ours.expire(108.0)) == 2
