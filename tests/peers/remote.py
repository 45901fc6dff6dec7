"""Third-party clients by remote control: a process that reads commands and writes JSON lines.

Each command has a number; its answer is ``{"re": number, "ok": true, ...}`` or ``{"ok": false,
"error": "..."}``. What consumers receive in between comes as ``{"event": ..., "client": name}``.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

Event = dict[str, Any]


class ClientError(Exception):
    """The client refused or failed; the text is its own."""


class RemoteClient:
    """``call`` answers what a command returned or raises ``ClientError``.

    Messages that consumers get are collected by the consumer's name; ``wait_messages`` waits for
    them.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._answers: dict[int, Event] = {}
        self._events: list[Event] = []
        self._ended = False
        self._log = folder / "client.log"
        folder.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,  # some tools leave files where they are run
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends its stdin, upon which the driver stops every client and itself."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # it ended before us
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def kill(self) -> None:
        """SIGKILL: the clients vanish without notifying the broker."""
        self._process.kill()
        self.close()

    def _line(self, number: int, command: str, options: dict[str, Any]) -> str:
        return json.dumps({"id": number, "command": command, **options})

    def start(self, command: str, **options: Any) -> int:
        """Sends a command without waiting; ``result`` takes the number it gives."""
        number = next(self._numbers)
        assert self._process.stdin is not None
        self._process.stdin.write(self._line(number, command, options) + "\n")
        self._process.stdin.flush()
        return number

    def result(self, number: int, timeout: float = 30) -> Event:
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: number in self._answers or self._ended, timeout=timeout
            )
            if not in_time:
                raise ClientError(f"the driver gave no answer within {timeout:g} s")
            if number not in self._answers:
                raise ClientError(f"the process ended: {self._log.read_text()[-3000:]}")
            answer = self._answers.pop(number)
        if not answer["ok"]:
            raise ClientError(answer["error"])
        return answer

    def call(self, command: str, timeout: float = 30, **options: Any) -> Event:
        return self.result(self.start(command, **options), timeout)

    def producer(self, namesrv: str, name: str, **options: Any) -> str:
        """Starts a producer under the name, which it returns, to be used with ``send``."""
        self.call("producer", namesrv=namesrv, name=name, **options)
        return name

    def send(self, name: str, topic: str, n: int = 1, **options: Any) -> list[Event]:
        """Sends n messages with bodies ``PREFIX-0`` and so on; the results in that order."""
        return list(self.call("send", name=name, topic=topic, n=n, timeout=60, **options)["sent"])

    def consumer(self, namesrv: str, name: str, group: str, topic: str, **options: Any) -> str:
        """Starts a push consumer under the name, which it returns."""
        self.call("consumer", namesrv=namesrv, name=name, group=group, topic=topic, **options)
        return name

    def stop(self, *names: str) -> None:
        """Stops producers and consumers as an application would, one after the other."""
        for name in names:
            self.call("stop", name=name)

    def events(self, kind: str, client: str) -> list[Event]:
        """All events of a kind that the named client has had so far."""
        with self._changed:
            return [e for e in self._events if e["event"] == kind and e["client"] == client]

    def messages(self, client: str) -> list[Event]:
        """All messages that the named consumer was given so far."""
        return [event["message"] for event in self.events("message", client)]

    def wait_messages(self, client: str, count: int, timeout: float = 60) -> list[Event]:
        """Waits until the named consumer got at least so many messages and returns all of them."""
        return self.wait_events("message", client, count, timeout)

    def wait_events(self, kind: str, client: str, count: int, timeout: float = 60) -> list[Event]:
        deadline = time.monotonic() + timeout
        while True:
            found = self.events(kind, client)
            if len(found) >= count:
                return [event["message"] for event in found]
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{client} had {len(found)} of {count} {kind} events within {timeout:g} s: "
                    + ", ".join(str(event["message"]["body"][:40]) for event in found)
                )
            with self._changed:
                self._changed.wait(timeout=0.1)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):  # output of a library
                continue
            event = json.loads(line)
            with self._changed:
                if "re" in event:
                    self._answers[event["re"]] = event
                else:
                    self._events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
