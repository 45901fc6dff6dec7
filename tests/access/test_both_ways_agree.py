"""Whatever a request is made of, the fast path admits exactly what the general one does."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from access.guarded import USERS, signed, write_users
from aerobee.broker.auth.admission import Admission, SendCheck
from aerobee.broker.auth.book import AccessBook
from aerobee.broker.auth.guard import Guard
from aerobee.broker.auth.verdicts import Denied
from aerobee.broker.base.clock import Clock
from aerobee.broker.fast.hot_codecs import UNUSUAL
from aerobee.broker.fast.signed_codecs import signed_heads_by_codec
from aerobee.broker.settings import Settings
from aerobee.protocol.wire.codecs import ENCODERS, ProtocolError, decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.headers import SEND_V2_NAMES
from aerobee.protocol.wire.signing import signature

NAMES = ["", "root", "nothing", "pub", "sub", "away", "anonymous", "who", "prefix"]
TOPICS = ["t", "t1", "secret", "%RETRY%g", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX", ""]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_guards: dict[Path, Guard] = {}


def guard_in(folder: Path) -> Guard:
    if folder not in _guards:
        values = Settings(acl_enable=True, acl_file=str(write_users(folder, USERS)))
        guard = Guard(values, AccessBook(values, str(folder / "access.json"), Clock()), Clock())
        guard.load()
        _guards[folder] = guard
    return _guards[folder]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, Command, dict[str, Any]]:
    topic = draw(st.sampled_from(TOPICS))
    extra = draw(
        st.dictionaries(TEXT.filter(lambda name: name not in SEND_V2_NAMES), TEXT, max_size=4)
    )
    ext = extra | {"b": topic, "d": "4", "e": "0", "f": "0", "g": "1"}
    ext |= draw(st.sampled_from([{}, {"h": "0", "i": "", "j": "0", "l": "3", "m": "false"}]))
    codec = draw(st.sampled_from([JSON, ROCKETMQ, MSGPACK]))
    command = Command(310, ext, draw(st.binary(max_size=8)), 1, codec=codec)
    user = draw(st.sampled_from(NAMES))
    secret = draw(st.sampled_from([None, None, None, "wrong", ""]))
    if user or draw(st.booleans()):
        signed(command, user, secret)
    harm: dict[str, Any] = {}
    if draw(st.booleans()):
        harm = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "Signature": st.one_of(TEXT, st.just("===="), st.integers(), st.booleans()),
                    "AccessKey": st.one_of(st.sampled_from(NAMES), st.integers()),
                    "e": st.one_of(TEXT, st.integers()),
                    "x" * 200: TEXT,
                },
            )
        )
    return topic, command, harm


def header_of(command: Command, harm: dict[str, Any]) -> bytes:
    if command.codec != JSON:
        texts = {name: str(value) for name, value in harm.items()}
        return ENCODERS[command.codec](Command(**_fields(command, command.ext | texts)))
    return json.dumps({"code": 310, "opaque": 1, "extFields": command.ext | harm}).encode()


def _fields(command: Command, ext: dict[str, str]) -> dict[str, Any]:
    return {"code": 310, "ext": ext, "opaque": 1, "codec": command.codec}


def peer_at(address: str) -> Any:
    return SimpleNamespace(peer=(address, 1), user="", certified=frozenset())


def admits_send(admits: SendCheck, command: Command, header: bytes) -> bool:
    _, heads = signed_heads_by_codec()[command.codec]
    [decode] = [decode for _, decode, code in heads.values() if code == 310]
    try:
        send = decode(header)
        return admits(310, send.extFields, send.content, bytes(command.body))
    except UNUSUAL:
        return False


@settings(max_examples=examples(400, share=100))
@given(requests())
def test_the_short_way_lets_nothing_pass_that_the_general_way_denies(
    tmp_path_factory: Any, made: tuple[str, Command, dict[str, Any]]
) -> None:
    topic, command, harm = made
    guard = guard_in(tmp_path_factory.getbasetemp())
    header = header_of(command, harm)
    admits = Admission(guard, peer_at("10.0.0.1")).send_check()
    short = [
        admits_send(admits, command, header)
        for _ in range(2)  # the second time from the cache
    ]
    assert short[0] == short[1]
    try:
        general = decode_command(command.codec, header, command.body)
    except ProtocolError:
        assert not short[0]
        return
    try:
        principal = guard.authenticate(310, general.ext, general.body, "10.0.0.1")
        guard.authorize(principal, general)
        allowed = True
    except Denied:
        allowed = False
    assert allowed or not short[0]
    if not harm and topic:
        assert short[0] == allowed


def test_the_check_is_the_clients_signature_whatever_the_secret_is() -> None:
    from aerobee.broker.auth.signature import is_signed_by

    for secret in ("s", "x" * 64, "x" * 65, "ключ", "x" * 1000):
        for ext in (
            {},
            {"b": "t"},
            {"b": "t", "a": "ü", "Z": ""},
            {str(n): "v" for n in range(99)},
        ):
            for body in (b"", b"body"):
                full = ext | {"Signature": signature(ext, body, secret)}
                assert is_signed_by((secret,), 310, full, body)
                assert not is_signed_by((secret + "!",), 310, full, body)
                assert not is_signed_by(None, 310, full, body)
                assert not is_signed_by((secret,), 310, full, body + b"!")
