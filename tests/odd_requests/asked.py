"""One broker, asked the rows of this folder."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, NamedTuple

from peers.tools import wait_for
from peers.wire import Answer, Wire

from odd_requests.asks import (
    GROUP,
    MESSAGES,
    OTHER,
    TOPIC,
    Ask,
    Row,
    by_key,
    commit,
    group,
    send,
    topic,
)

SILENT = -1  # no answer in time
PATIENCE_S = 3.0
JAVA: dict[str, Any] = {"language": "JAVA", "version": 435}
_UNIQUE = "7F000001000018B4AAC2000000000A%02X"


class Seen(NamedTuple):
    """An answer, as far as it is compared."""

    code: int
    fields: tuple[str, ...] = ()
    remark: str = ""


class Asked:
    """A broker with a topic, groups and messages of its own."""

    def __init__(self, broker: str, namesrv: str, *, compact: bool = True) -> None:
        self.addresses = {"broker": broker, "namesrv": namesrv}
        self._compact = compact  # as Java's clients write it; our fast path reads no other form
        self._facts = self._prepare()

    def answers(self, row: Row) -> tuple[Seen, ...]:
        """What the broker answers; a half message is sent beforehand for rows that need one."""
        wires: dict[str, Wire] = {}
        needs_half = any("{half" in text for ask in row.asks for text in ask.ext.values())
        facts = self._facts | (self._half() if needs_half else {})
        try:
            return tuple(self._ask(wires, _filled(ask, facts), row.sees) for ask in row.asks)
        finally:
            for wire in wires.values():
                wire.socket.close()

    def _ask(self, wires: dict[str, Wire], ask: Ask, sees: tuple[str, ...]) -> Seen:
        if ask.on not in wires:
            address = self.addresses[ask.on]
            wires[ask.on] = Wire(address, timeout=PATIENCE_S, compact=self._compact)
        try:
            answer = wires[ask.on].request(ask.code, ask.ext, ask.body, **JAVA)
        except TimeoutError:
            del wires[ask.on]
            return Seen(SILENT)
        fields = tuple(_field(answer, name) for name in sees)
        return Seen(answer.code, fields, str(answer.header.get("remark")))

    def _half(self) -> dict[str, str]:
        half = send(i="TRAN_MSG\x01true\x02PGROUP\x01OddProducers\x02", f="4")
        with Wire(self.addresses["broker"]) as wire:
            ext = wire.request(half.code, half.ext, half.body, **JAVA).ext
        return {"half": str(int(ext["msgId"][-16:], 16)), "half_queue": ext["queueOffset"]}

    def _prepare(self) -> dict[str, str]:
        with Wire(self.addresses["broker"]) as wire:

            def done(ask: Ask) -> Answer:
                answer = wire.request(ask.code, ask.ext, ask.body, **JAVA)
                assert answer.code == 0, (ask, answer)
                return answer

            for name in (TOPIC, OTHER):
                done(topic(name, readQueueNums="4", writeQueueNums="4"))
            for name in (GROUP, OTHER):
                done(group(name))
            ids = []
            for number in range(MESSAGES):
                unique = _UNIQUE % number
                text = f"KEYS\x01k\x02UNIQ_KEY\x01{unique}\x02WAIT\x01true"
                ids.append(done(send(b"body", e="0", i=text)).ext["msgId"])
            done(commit())
            key = by_key()
            wait_for(
                lambda: wire.request(key.code, key.ext, **JAVA).code == 0,
                timeout=20,
                what="the messages can be found by key",
            )
        offset = int(ids[0][-16:], 16)
        with Wire(self.addresses["namesrv"]) as wire:
            route = wire.request(105, {"topic": "SELF_TEST_TOPIC"}, **JAVA).body
        broker = route.partition(b'"brokerName":"')[2].partition(b'"')[0].decode()
        return {
            "broker": broker,
            "id": ids[0],
            "inside": str(offset + 10),
            "offset": str(offset),
            "unique": _UNIQUE % 0,
        }


def _filled(ask: Ask, facts: dict[str, str]) -> Ask:
    """The request with the broker's facts in it."""
    ext, body = dict(ask.ext), ask.body
    for name, fact in facts.items():
        mark = f"{{{name}}}"
        ext = {key: value.replace(mark, fact) for key, value in ext.items()}
        body = body.replace(mark.encode(), fact.encode())
    return replace(ask, ext=ext, body=body)


def _field(answer: Answer, name: str) -> str:
    if name != "messages":
        return str(answer.ext.get(name))
    count = at = 0
    while at < len(answer.body):
        at += struct.unpack_from(">i", answer.body, at)[0]
        count += 1
    return str(count)
