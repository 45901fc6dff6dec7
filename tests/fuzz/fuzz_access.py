"""Fuzz of signatures and of TLS records, against a live broker with users.

    python tests/fuzz/fuzz_access.py [--seconds 30] [--seed N]

Nobody but the control client may send. Attackers sign as one without rights, sign wrongly, damage
signed requests or copy those of the control client, plain and under TLS; others damage handshakes
and records. What the store holds at the end must be what the control client has sent, and nothing
more; an exception inside the broker is a finding.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from access.guarded import guarded_broker
from fuzz_server import run_command, swallow
from mutate import damaged, request
from peers.in_process import send_ext
from tls.certificates import Authority

from aerobee.broker.auth import verdicts
from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame
from aerobee.protocol.wire.signing import Credentials, Signer

PEERS = 4
CONTROL_SECONDS_MAX = 10.0
ROOT = Credentials("root", "a-secret-of-root")
HARMLESS = [
    Credentials("nothing", "a-secret-of-nothing"),
    Credentials("away", "a-secret-of-away"),
    Credentials("root", "not the secret"),
    Credentials("nobody", "x"),
    Credentials("", ""),
]
FIELDS = ["AccessKey", "Signature", "SecurityToken", "_t", "_n", "_c", "b", "e", "i"]
TEXTS = ["", "root", "=", "====", "AAAAAAAAAAAAAAAAAAAAAAAAAAA=", "ü", "\0", "x" * 5000, "1.1"]
copied: list[bytes] = []  # requests of the control client, each after its answer


def signed_request(rng: random.Random) -> bytes:
    """What a client without rights could send."""
    if copied and rng.random() < 0.3:
        frame = rng.choice(copied)
        return frame if rng.random() < 0.3 else damaged(rng, frame)
    command = request(rng)
    if rng.random() < 0.5:
        command = Command(310, send_ext("Control"), b"forged", 1)
    command.codec = rng.choice([JSON, JSON, ROCKETMQ, MSGPACK])
    signer = Signer(rng.choice(HARMLESS))
    for _ in range(rng.choice([1, 1, 1, 20])):
        signer.sign(command)
    for _ in range(rng.choice([0, 0, 1, 2])):
        command.ext[rng.choice(FIELDS)] = rng.choice(TEXTS)
    if rng.random() < 0.02:
        command.ext |= {f"x{number}": "y" for number in range(rng.choice([60, 1000, 1100]))}
    frame = encode_frame(command)
    return damaged(rng, frame) if rng.random() < 0.3 else frame


async def attack(
    app: AppBroker, rng: random.Random, deadline: float, counts: dict[str, int]
) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while time.monotonic() < deadline:
        way = rng.choice([_signed, _signed, _under_tls, _records])
        try:
            await asyncio.wait_for(way(app.broker_port, rng, context), 10)
        except (OSError, TimeoutError):
            counts["closed on us"] += 1
        counts["attacks"] += 1


async def _signed(port: int, rng: random.Random, _: ssl.SSLContext) -> None:
    await _send(await asyncio.open_connection("127.0.0.1", port), rng)


async def _under_tls(port: int, rng: random.Random, context: ssl.SSLContext) -> None:
    await _send(await asyncio.open_connection("127.0.0.1", port, ssl=context), rng)


async def _send(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], rng: random.Random
) -> None:
    reader, writer = streams
    reading = asyncio.create_task(swallow(reader))
    try:
        for _ in range(rng.randrange(1, 40)):
            writer.write(signed_request(rng))
            await writer.drain()
    finally:
        writer.transport.abort()
        await asyncio.gather(reading, return_exceptions=True)


async def _records(port: int, rng: random.Random, context: ssl.SSLContext) -> None:
    """A handshake by hand, of which some bytes are wrong; then records that are."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    harm_at = rng.randrange(6)
    try:
        for step in range(40):
            try:
                client.do_handshake() if step < 20 else client.write(signed_request(rng))
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return
            data = outgoing.read()
            if step == harm_at or (step > 20 and rng.random() < 0.2):
                data = damaged(rng, data) if data else bytes([0x16, 3, 3, 0, 5, 1, 0, 0, 1, 0])
            writer.write(data)
            await writer.drain()
            if step < 20:
                incoming.write(await asyncio.wait_for(reader.read(1 << 16), 0.2))
    except (ssl.SSLError, TimeoutError, ConnectionError):
        return
    finally:
        writer.transport.abort()


async def control(app: AppBroker, deadline: float, counts: dict[str, int]) -> None:
    """A client with the right to send: each message is accepted, once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", app.broker_port)
    signer, decoder = Signer(ROOT), FrameDecoder()
    while time.monotonic() < deadline:
        codec = (JSON, MSGPACK, ROCKETMQ)[counts["controls"] % 3]
        command = Command(310, send_ext("Control"), b"control", 7, codec=codec)
        signer.sign(command)
        frame = encode_frame(command)
        writer.write(frame)
        found: list[tuple[int, bytes, bytes]] = []
        while not found:
            data = await asyncio.wait_for(reader.read(1 << 16), CONTROL_SECONDS_MAX)
            assert data, "the control client's connection was closed"
            found = decoder.feed(data)
        answer = decode_command(*found[0])
        assert answer.code == 0, (answer.code, answer.remark)
        copied.append(frame)
        del copied[:-200]
        counts["controls"] += 1
        await asyncio.sleep(0.005)
    writer.close()


async def run(seconds: float, seed: int) -> dict[str, int]:
    counts = {"attacks": 0, "closed on us": 0, "controls": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pair = Authority(folder / "ca").sign("server")
        settings = {
            "mapped_file_size_commit_log": 32 << 20,
            "requests_must_be_fresh": True,
            "tls_server_cert_path": pair.certificate,
            "tls_server_key_path": pair.key,
        }
        async with guarded_broker(folder, **settings) as app:
            deadline = time.monotonic() + seconds
            await asyncio.gather(
                control(app, deadline, counts),
                *(
                    attack(app, random.Random(f"{seed}-{n}"), deadline, counts)
                    for n in range(PEERS)
                ),
            )
            stored = app.broker.stats.broker_put.nums
            assert stored == counts["controls"], f"{stored} messages stored, {counts}"
            assert set(app.broker.guard.audit.denials) >= {verdicts.BAD_SIGNATURE, verdicts.STALE}
    return counts


if __name__ == "__main__":
    run_command("access", __doc__, run)
