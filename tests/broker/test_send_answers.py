"""Answers to sends are made from templates: the same bytes as an encoder makes of the fields."""

from __future__ import annotations

import pytest

from aerobee.broker.net.answers import SendAnswers
from aerobee.protocol.wire.command import JSON, MSGPACK, RESPONSE_FLAG, ROCKETMQ, Command
from aerobee.protocol.wire.frame import encode_frame


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ, MSGPACK])
def test_a_unique_key_of_any_length_is_answered_as_an_encoder_would(codec: int) -> None:
    answers, head = SendAnswers("DefaultRegion", True), b"0A000001000027AB"
    for size in range(1, 400):  # one of 126 bytes has a length that looks like the filler
        for queue_offset in (5, 55, 12345):
            key = "k" * size
            fields = answers.fields(f"{head.decode()}{1234:016X}", "3", str(queue_offset), key)
            wanted = encode_frame(Command(0, fields, b"", 7, RESPONSE_FLAG, codec=codec))
            assert answers.stored(codec, 7, head, 1234, 3, queue_offset, key) == wanted
