"""Signed sends on the compiled path: the same are admitted as in Python, with the same bytes."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.auth import guard
from aerobee.broker.compiled import hot
from aerobee.broker.fast.compiled_path import CompiledPath, rules
from aerobee.broker.fast.hot_path import HotPath
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame
from aerobee.protocol.wire.signing import Credentials, signed_content
from two_ways.bursts import CODECS, frames_of, is_sound, usual
from two_ways.in_process import Fed
from two_ways.requests import Asked
from two_ways.signed import USERS, all_signed
from two_ways.twins import stored

pytestmark = pytest.mark.skipif(hot is None, reason="this installation is pure Python")
ROOT = Credentials("root", "the-secret-of-root")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many wrong signatures do not close the connection, which would end the comparison."""
    monkeypatch.setattr(guard, "GUESSES_MAX", -1)


def guarded(folder: Path, kind: type[HotPath]) -> Fed:
    folder.mkdir(exist_ok=True)
    path = folder / "access.yml"
    path.write_text(USERS)
    path.chmod(0o600)
    return Fed(folder, kind, acl_enable=True, acl_file=str(path))


def send(codec: int, **other: str) -> Command:
    text = "KEYS\x01k\x02UNIQ_KEY\x017F00000100\x02TAGS\x01ü"
    ext = {"a": "pg", "b": "Known", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1", "h": "0"}
    return Command(310, ext | {"i": text, "j": "0", "k": "false"} | other, b"body", codec=codec)


async def test_both_admit_and_store_the_same(tmp_path: Path) -> None:
    python = guarded(tmp_path / "one", HotPath)
    compiled = guarded(tmp_path / "two", CompiledPath)
    ways = (python, compiled)
    for way in ways:
        way.broker.guard.load()
    draw = random.Random(1)
    taken = 0
    for step in range(400):
        frames = []
        for opaque in range(draw.randrange(1, 9)):
            frames.append(Asked(usual(draw, opaque), opaque, ""))
        burst = all_signed([[] for _ in range(draw.randrange(9))] + [frames])[-1]
        data = b"".join(asked.frame for asked in burst)
        said = []
        for way in ways:
            random.seed(step)  # queue ids that the broker chooses
            said.append(way.said(data))
        assert frames_of(said[1][0]) == frames_of(said[0][0]), f"step {step}"
        assert said[1][1] == said[0][1], f"step {step}"
        assert compiled.connection.user == python.connection.user, f"step {step}"
        feed: Any = compiled.feed
        taken += feed._signed_by[1] is not None
    assert taken > 100, "hardly any signature was checked in C"
    assert compiled.counted() == python.counted()
    assert compiled.counted()["store"][0] > 300, "hardly anything was stored"
    for way in ways:
        way.broker.store.close()
    assert stored(tmp_path / "two") == stored(tmp_path / "one")


@pytest.mark.parametrize("codec", CODECS)
async def test_only_what_the_user_has_signed_for_the_topic_is_taken(
    tmp_path: Path, codec: int
) -> None:
    assert hot is not None
    way = Fed(tmp_path, CompiledPath)
    for _ in range(2):
        way.said(encode_frame(send(codec)))
    plain = way.feed._sends.plain
    assert plain["Known"]

    def takes(frame: bytes, name: str = "root", topic: str = "Known", *secrets: str) -> bool:
        signer = hot.Signer(name.encode(), topic.encode(), secrets or (ROOT.secret_key,))
        cursor = iter(hot.Frames(frame, 1 << 20))
        run = cursor.sends(plain, rules(way.feed._sends.added), bytes(8), bytes(8), False, signer)
        return run is not None

    def signed(command: Command, credentials: Credentials = ROOT) -> bytes:
        credentials.sign(command)
        return encode_frame(command)

    frame = signed(send(codec))
    assert takes(frame)
    assert takes(frame, "root", "Known", "another", ROOT.secret_key)
    assert takes(signed(send(codec, _t="1", AA="x", z="y", zz="z")))
    long = Credentials("root", "s" * 200)
    assert takes(signed(send(codec), long), "root", "Known", long.secret_key)
    assert not takes(encode_frame(send(codec)))
    assert not takes(frame, "root", "Known", "another")
    assert not takes(frame, "other")
    assert not takes(frame, "root", "Other")
    assert not takes(frame[:-1] + b"Y"), "another body"
    for at in range(len(frame)):  # with any other byte it is another message, but for names
        other = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        cut = FrameDecoder(1 << 20).feed(other)
        if len(cut) == 1 and is_sound(other) and takes(other):
            one, two = decode_command(*cut[0]), decode_command(*FrameDecoder().feed(frame)[0])
            assert signed_content(one.ext) == signed_content(two.ext), f"byte {at}"
            assert one.body == two.body
    way.broker.store.close()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("secrets", [("the-secret-of-root",), ("new", "the-secret-of-root")])
async def test_a_run_ends_before_the_first_send_that_is_forged(
    tmp_path: Path, codec: int, secrets: tuple[str, ...]
) -> None:
    """Signatures are checked two by two, of messages of any two sizes."""
    assert hot is not None
    way = Fed(tmp_path, CompiledPath)
    for _ in range(2):
        way.said(encode_frame(send(codec)))
    draw = random.Random(1)
    signer = hot.Signer(b"root", b"Known", secrets)
    for count in range(1, 6):
        for forged in range(count + 1):  # the last time none is
            frames = []
            for number in range(count):
                command = send(codec)
                command.body = draw.randbytes(draw.choice([0, 1, 40, 200, 1024, 5000]))
                wrong = Credentials("root", draw.choice(["another", ROOT.secret_key + "s"]))
                (wrong if number == forged else ROOT).sign(command)
                frames.append(encode_frame(command))
            cursor = iter(hot.Frames(b"".join(frames), 1 << 20))
            words = (way.feed._sends.plain, rules(way.feed._sends.added), bytes(8), bytes(8))
            run = cursor.sends(*words, False, signer)
            assert (0 if run is None else len(run)) == forged
            left = sum(1 for _ in cursor)
            assert left == count - forged
    way.broker.store.close()


@pytest.mark.parametrize("plainly", [False, True])
def test_the_hash_is_sha_1(plainly: bool) -> None:
    assert hot is not None
    draw = random.Random(1)
    for size in [*range(200), *draw.choices(range(5000), k=100)]:
        data = draw.randbytes(size)
        assert hot.sha1(data, plainly=plainly) == hashlib.sha1(data).digest()
