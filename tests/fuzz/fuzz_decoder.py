"""Fuzz of all that reads bytes without a socket.

    python tests/fuzz/fuzz_decoder.py [--seconds 30] [--seed N]     by mutation, no extra library
    python tests/fuzz/corpus.py [--seconds 600]                     by coverage, with atheris

Beside not crashing it must hold that: slices do not matter, what is decoded encodes back to the
same, and the hot path's decoders, in Python and compiled, never read a header otherwise than the
general ones.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from typing import TYPE_CHECKING

from mutate import damaged, frames

from aerobee.broker import compiled
from aerobee.broker.fast.compiled_path import CutDecoder, rules
from aerobee.broker.fast.hot_codecs import SEND, UNUSUAL, Heads, heads_by_codec
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import decode_batch
from aerobee.protocol.files.record import decode_records
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import (
    FRAME_SIZE_MAX,
    FrameDecoder,
    RawFrame,
    encode_frame,
    frame_lengths,
)
from aerobee.protocol.wire.headers import (
    HeaderError,
    PullRequest,
    SendRequest,
    decode_ext,
    decode_send_v2,
)

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot


def check(data: bytes) -> None:
    """All that must hold for any bytes."""
    whole = FrameDecoder()
    cut = whole.feed(data)
    sliced = FrameDecoder()
    position, pieces = 0, []
    step = 1 + len(data) % 13
    while position < len(data):
        pieces += sliced.feed(data[position : position + step])
        position += step
        step = 1 + step * 7 % 61
    assert pieces == cut, "slices matter"
    if compiled.hot is not None:
        again = CutDecoder(FRAME_SIZE_MAX)
        assert list(again.feed(data)) == cut, "frames are cut otherwise in C"
        assert str(again.error) == str(whole.error) and again.pending == whole.pending
    assert (sliced.error is None) == (whole.error is None)
    heads = heads_by_codec()
    for frame in cut:
        check_frame(frame, heads)
    check_bodies(data)


def check_frame(frame: RawFrame, heads: tuple[Heads, ...]) -> None:
    codec, header, body = frame
    try:
        command: Command | None = decode_command(codec, header, body)
    except ProtocolError:
        command = None
    if command is not None and _has_form(command):
        [again] = FrameDecoder().feed(encode_frame(command))
        assert decode_command(*again) == command, "encoding changes it"
    size, table = heads[codec]
    head = table.get(header[:size])
    if head is None:
        return
    try:
        hot = head[1](header)
    except UNUSUAL:
        assert compiled_send(frame, "Fuzz", 1) is None, "Python reads no such header"
        return
    if head[0] == SEND:
        check_compiled(frame, hot)
    if hot is None or command is None:  # what the hot path skips may be unsound
        return
    assert (hot.opaque, hot.flag) == (command.opaque, command.flag)
    compare(head[0], hot.extFields, command)


class _Queue:
    """Stands for the queue that a send goes to."""


def compiled_send(frame: RawFrame, topic: str, queue_id: int) -> _hot.Run | None:
    """The frame as the compiled path takes it; None: it does not."""
    if compiled.hot is None:
        return None
    codec, header, body = frame
    frames: _hot.Frames = compiled.hot.Frames(
        frame_lengths(codec, len(header), len(body)) + header + body, FRAME_SIZE_MAX
    )
    host = bytes(8)
    return iter(frames).sends({topic: {queue_id: _Queue()}}, rules("x\x01y\x02"), host, host, False)


def check_compiled(frame: RawFrame, hot: object) -> None:
    """What the compiled path takes it reads as the one in Python does."""
    fields = hot.extFields  # type: ignore[attr-defined]
    run = compiled_send(frame, fields.b, fields.e)
    if run is None:
        return
    [(_, body, text, flag, sys_flag, born, _, _, times, _)] = run[:]
    [(opaque, queue_id, frame_flag, _, key)] = run.marks()
    ended = properties.ended(fields.i)
    assert (body, text) == (frame[2], ended + "x\x01y\x02")
    assert key == properties.get(ended, properties.UNIQ_KEY)
    assert (flag, sys_flag, born, times) == (fields.h, fields.f, fields.g, fields.j)
    assert (opaque, frame_flag) == (hot.opaque, hot.flag)  # type: ignore[attr-defined]
    assert (queue_id, fields.m) == (fields.e, False)


def compare(kind: int, hot: object, command: Command) -> None:
    """The hot fields against the general ones, where these can be read."""
    try:
        if kind != SEND:
            assert decode_ext(command.ext, PullRequest) == hot
            return
        if command.code == 10:
            general = decode_ext(command.ext, SendRequest)
        else:
            general = decode_send_v2({"a": ""} | command.ext)
    except HeaderError:
        return
    got = tuple(getattr(hot, name) for name in "bdefghijlm")
    assert got == (
        general.topic,
        general.default_topic_queue_nums,
        general.queue_id,
        general.sys_flag,
        general.born_timestamp,
        general.flag,
        general.properties,
        general.reconsume_times,
        general.max_reconsume_times,
        general.batch,
    )


def _has_form(command: Command) -> bool:
    """Whether its codec can carry all of it: the binary header has two bytes for some numbers."""
    short = range(-(2**15), 2**15)
    if any(len(name.encode()) > 32767 for name in command.ext):
        return False
    if command.codec == 1:
        return command.code in short and command.version in short
    return True


def check_bodies(data: bytes) -> None:
    for read in (decode_batch, decode_records):
        with contextlib.suppress(CorruptRecord):
            read(data)
    try:
        for message in decode_records(data):
            assert message.size <= len(data)
    except CorruptRecord:
        pass
    try:
        value = fastjson.loads(data)
    except fastjson.JsonError:
        pass
    else:
        assert value is None or isinstance(value, (dict, list, str, int, float, bool))
    text = data.decode("utf-8", "replace")
    pairs = properties.parse(text)
    assert all(name and value for name, value in pairs.items())


def by_mutation(seconds: float, seed: int) -> int:
    rng = random.Random(seed)
    deadline = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < deadline:
        data = frames(rng)
        data = damaged(rng, data) if rng.random() < 0.3 else data
        try:
            check(data)
        except BaseException:
            print(f"seed={seed} run={runs} input={data.hex()}", file=sys.stderr)
            raise
        runs += 1
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    print(f"decoder: seed {arguments.seed}", flush=True)
    runs = by_mutation(arguments.seconds, arguments.seed)
    print(f"decoder: {runs} inputs, no finding")


if __name__ == "__main__":
    main()
