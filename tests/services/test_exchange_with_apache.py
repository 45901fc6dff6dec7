"""Pending timers, delays and transactions in a store folder that goes to Apache and back."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.apache import ApacheBroker
from peers.tools import wait_for
from peers.wire import Answer, Wire

from aerobee.protocol import properties as props
from aerobee.protocol.record import decode_records

pytestmark = [pytest.mark.apache, pytest.mark.timeout(240)]

TOPIC = "exchange"
SEND, PULL, HEARTBEAT, END, CHECK = 10, 11, 34, 37, 39
COMMIT = 8


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send(address: str, body: str, *, sys_flag: int = 0, **properties: Any) -> Answer:
    texts = {name: str(value) for name, value in {"UNIQ_KEY": f"u-{body}", **properties}.items()}
    with Wire(address) as wire:
        answer = wire.request(
            SEND,
            {
                "producerGroup": "p",
                "topic": TOPIC,
                "defaultTopic": "TBW102",
                "defaultTopicQueueNums": "1",
                "queueId": "0",
                "sysFlag": str(sys_flag),
                "bornTimestamp": str(now_ms()),
                "flag": "0",
                "properties": props.encode(texts),
            },
            body.encode(),
        )
    assert answer.code == 0, answer
    return answer


def came(address: str) -> Counter[str]:
    """The bodies of the topic so far."""
    bodies: Counter[str] = Counter()
    queue_offset = 0
    with Wire(address) as wire:
        while True:
            answer = wire.request(
                PULL,
                {
                    "consumerGroup": "TOOLS_CONSUMER",
                    "topic": TOPIC,
                    "queueId": "0",
                    "queueOffset": str(queue_offset),
                    "maxMsgNums": "32",
                    "sysFlag": "4",
                    "commitOffset": "0",
                    "suspendTimeoutMillis": "0",
                    "subscription": "*",
                    "subVersion": "0",
                },
            )
            if answer.code != 0:
                return bodies
            bodies.update(message.body.decode() for message in decode_records(answer.body))
            queue_offset = int(answer.ext["nextBeginOffset"])


def wait_until(at_ms: int) -> None:
    time.sleep(max(0, at_ms - now_ms()) / 1000)


def end_life(broker: AerobeeBroker | ApacheBroker, how: str) -> None:
    if how == "stop":
        broker.stop()
    else:
        time.sleep(3)  # Apache's flush of timers comes every second; a kill loses what is younger
        broker.kill()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_timers_and_delays_go_from_5_5_to_us_and_back(tmp_path: Path, how: str) -> None:
    start_ms = now_ms()
    apache = ApacheBroker("5.5.0", tmp_path, recallMessageEnable="true")
    with apache:
        send(apache.broker, "apache fires", TIMER_DELAY_SEC=2)
        send(apache.broker, "from apache", TIMER_DELIVER_MS=start_ms + 24_500)
        send(apache.broker, "from apache, relative", TIMER_DELAY_SEC=15)
        send(apache.broker, "there and back", TIMER_DELIVER_MS=start_ms + 55_000)
        send(apache.broker, "level there and back", DELAY=5)
        send(apache.broker, "level from apache", DELAY=4)  # 30 s
        recalled = send(apache.broker, "recalled", TIMER_DELIVER_MS=start_ms + 26_000)
        with Wire(apache.broker) as wire:
            handle = recalled.ext["recallHandle"]
            fields = {"topic": TOPIC, "recallHandle": handle, "producerGroup": "p"}
            assert wire.request(370, fields).code == 0
        wait_for(lambda: came(apache.broker)["apache fires"] == 1, timeout=20, what="fired")
        end_life(apache, how)
    ours = AerobeeBroker(tmp_path)
    with ours:
        send(ours.broker, "ours fires", TIMER_DELAY_MS=1500)
        send(ours.broker, "from us", TIMER_DELIVER_MS=start_ms + 53_300)
        send(ours.broker, "level from us", DELAY=5)  # a minute
        far = send(ours.broker, "recalled here", TIMER_DELIVER_MS=start_ms + 54_000)
        with Wire(ours.broker) as wire:
            fields = {"topic": TOPIC, "recallHandle": far.ext["recallHandle"]}
            assert wire.request(370, fields).code == 0
        wait_until(start_ms + 24_400)
        assert came(ours.broker)["from apache"] == 0
        wait_until(start_ms + 25_200)
        assert came(ours.broker)["from apache"] == 1
        wait_until(start_ms + 40_000)
        expected = {"from apache, relative", "ours fires", "level from apache"}
        assert expected <= came(ours.broker).keys()
        end_life(ours, how)
    with apache:
        wait_until(start_ms + 53_000)
        assert came(apache.broker)["from us"] == 0
        wait_until(start_ms + 57_500)
        wait_for(
            lambda: came(apache.broker)["level from us"] > 0, timeout=40, what="the last level"
        )
        found = came(apache.broker)
        apache.stop()
    wanted = {"apache fires", "from apache", "from apache, relative", "there and back"}
    wanted |= {"level there and back", "level from apache", "ours fires", "from us"}
    wanted |= {"level from us"}
    assert found.keys() == wanted
    if how == "stop":
        assert set(found.values()) == {1}, found


def begin(address: str, body: str) -> dict[str, str]:
    """A half message; what its END_TRANSACTION says."""
    answer = send(address, body, sys_flag=4, TRAN_MSG="true", PGROUP="p")
    return {
        "producerGroup": "p",
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(int(answer.ext["msgId"][16:], 16)),
        "commitOrRollback": str(COMMIT),
        "fromTransactionCheck": "false",
        "msgId": f"u-{body}",
    }


def commit(address: str, fields: dict[str, str]) -> None:
    with Wire(address) as wire:
        assert wire.request(END, fields).code == 0


def answer_checks(address: str, seconds: float) -> list[str]:
    """Be a producer of the group for a while and commit what is asked about; the message ids."""
    asked = []
    body = {"clientID": "c", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": []}
    with Wire(address, timeout=1) as wire:
        assert wire.request(HEARTBEAT, {}, json.dumps(body).encode()).code == 0
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            try:
                check = wire.unasked.pop(0) if wire.unasked else wire.receive()
            except TimeoutError:
                continue
            assert check.code == CHECK
            asked.append(str(check.ext["msgId"]))
            fields = {
                name: str(check.ext[name])
                for name in ("tranStateTableOffset", "commitLogOffset", "msgId")
            }
            more = {"commitOrRollback": str(COMMIT), "fromTransactionCheck": "true"}
            wire.request(END, fields | more | {"producerGroup": "p"})
    return asked


@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
def test_open_transactions_go_from_apache_to_us_and_back(tmp_path: Path, version: str) -> None:
    quick = {"transactionCheckInterval": "2000", "transactionTimeOut": "1000"}
    apache = ApacheBroker(version, tmp_path, **quick)
    with apache:
        commit(apache.broker, begin(apache.broker, "done there"))
        begin(apache.broker, "open there")
        time.sleep(4)  # 5.x writes its op messages in batches of three seconds
        apache.stop()
    ours = AerobeeBroker(tmp_path, **quick)
    with ours:
        begun = begin(ours.broker, "done here")
        commit(ours.broker, begun)
        assert "u-done there" not in answer_checks(ours.broker, 6)
        wait_for(lambda: came(ours.broker)["open there"] == 1, timeout=5, what="the commit")
        begin(ours.broker, "open here")
        ours.stop()
    with apache:
        asked = answer_checks(apache.broker, 12)
        found = came(apache.broker)
        apache.stop()
    assert "u-open here" in asked and not {"u-done here", "u-open there"} & set(asked)
    assert found.keys() == {"done there", "open there", "done here", "open here"}
    del found["open here"]  # 5.5.0 itself delivers one twice when it checks again too soon
    assert set(found.values()) == {1}
