"""Every request code with no, wrong, low and right credentials, on both ways of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from access.guarded import Asker, guarded_broker, make_topics, pull_fields, send_fields
from aerobee.broker.auth.permissions import ADMINISTRATIVE, ROWS, Level, missing_rows
from aerobee.broker.daemon import wiring
from aerobee.broker.daemon.wiring import make_front
from aerobee.protocol.wire.codes import RequestCode

NO = 16
# Requests from broker to client: a broker never receives them.
TO_CLIENTS = {39, 40, 220, 221, 326}
SIGNED = {code for code, row in ROWS.items() if row is Level.SIGNED}
OPEN = {code for code, row in ROWS.items() if row is Level.OPEN}


def everything(offset: int, message_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields and a body that name, for any code, another user's resources."""
    names = {"consumerGroup": "theirs", "group": "theirs", "groupName": "theirs"}
    names |= {"srcGroup": "theirs", "destGroup": "theirs", "compareGroup": "theirs"}
    ext = send_fields("secret") | pull_fields("secret", "theirs") | names
    ext |= {"offset": offset, "commitLogOffset": offset, "msgId": message_id, "timestamp": 0}
    ext |= {"tranStateTableOffset": 0, "commitOrRollback": 8, "producerGroup": "p"}
    ext |= {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "clientID": "c", "clientId": "c"}
    ext |= {"username": "x", "subject": "User:x", "accessKey": "x", "query": "q", "batch": 1}
    ext |= {"timeoutMs": 1, "partition": 0, "attempt": 0, "chunk": 0, "bornTimestamp": 1}
    ext |= {"key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1, "namespace": "n"}
    ext |= {"isForce": "true", "statsName": "x", "statsKey": "x", "index": 0, "count": 1}
    consumer = names | {"subscriptionDataSet": [{"topic": "secret", "subString": "*"}]}
    body = names | {
        "clientID": "c",
        "clientId": "c",
        "topic": "secret",
        "consumerDataSet": [consumer],
        "mqSet": [{"topic": "secret", "brokerName": "broker-a", "queueId": 0}],
        "topicConfigList": [{"topicName": "secret"}],
        "groupConfigList": [{"groupName": "theirs"}],
        "chunks": [[0, 0, 0, offset, 10]],
    }
    return ext, body


async def foreign_record(asker: Asker) -> tuple[int, str]:
    answer = await asker.ask("root", 310, send_fields("secret"), b"private")
    message_id = answer.ext["msgId"]
    return int(message_id[16:], 16), message_id


@pytest.mark.parametrize("general", [False, True], ids=["short way", "general path"])
async def test_every_code_wants_the_right_credentials(
    tmp_path: Path, general: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee.broker.auth.guard.GUESSES_MAX", 10**6)  # we send many
    async with guarded_broker(tmp_path) as app:
        await make_topics(app, "secret")
        codes = sorted(make_front(app.broker).dispatcher.handlers)
        wrong = []
        async with Asker.connected(app.broker_port) as asker:
            ext, body = everything(*await foreign_record(asker))
            for who, secret, passing in (
                ("", None, OPEN),
                ("root", "not its secret", OPEN),
                ("nobody", "not its secret", OPEN),
                ("nothing", None, OPEN | SIGNED),
            ):
                for code in codes:
                    answer = await asker.ask(who, code, ext, body, secret=secret, general=general)
                    if (answer.code != NO) != (code in passing):
                        wrong.append(f"{who or 'unsigned'} {code}: {answer.code} {answer.remark}")
        assert not wrong, "\n".join(wrong)
        assert len(codes) > 100


@pytest.mark.parametrize("general", [False, True], ids=["short way", "general path"])
async def test_a_super_user_is_never_denied(tmp_path: Path, general: bool) -> None:
    async with guarded_broker(tmp_path) as app:
        await make_topics(app, "secret")
        denied = []
        async with Asker.connected(app.broker_port) as asker:
            ext, body = everything(*await foreign_record(asker))
            for code in sorted(make_front(app.broker).dispatcher.handlers):
                answer = await asker.ask("root", code, ext, body, general=general)
                if answer.code == NO and "User:" in (answer.remark or ""):
                    denied.append(f"{code}: {answer.remark}")
    assert not denied, "\n".join(denied)


async def test_a_handler_without_a_row_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newcomer = {4711: lambda broker, request: None}
    monkeypatch.setattr(wiring, "HANDLERS", (*wiring.HANDLERS, newcomer))
    with pytest.raises(AssertionError, match=r"\[4711\] have no row"):
        async with guarded_broker(tmp_path):
            pass


def test_the_table_knows_every_code_of_the_protocol() -> None:
    assert set(missing_rows(RequestCode)) == TO_CLIENTS
    assert not missing_rows(ADMINISTRATIVE)
