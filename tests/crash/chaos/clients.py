"""Producers and consumers of three kinds, which record what they sent, had acked and read."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Final, Self

from peers.remote import ClientError, RemoteClient

from aerobee import AerobeeError, ConsumerOptions
from aerobee.sync import connect

GROUP: Final = "chaos"
AT_ONCE: Final = 5
LOOK_S: Final = 0.5


class Sets:
    """Bodies; each is sent once, apart from a client's own retries."""

    def __init__(self) -> None:
        self.tried: set[str] = set()
        self.acked: set[str] = set()
        self.got: Counter[str] = Counter()


class Member:
    """One producer and one consumer of the group, each in a thread, until the block ends."""

    def __init__(self, name: str, sets: Sets) -> None:
        self._name = name
        self._sets = sets
        self._sends = self._lives = True
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._consume)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sends = self._lives = False
        for thread in self._threads:
            thread.join()

    def stop_sending(self) -> None:
        self._sends = False
        self._threads[0].join()

    def _bodies(self, number: int) -> list[str]:
        bodies = [f"{self._name}.{number}-{n}" for n in range(AT_ONCE)]
        self._sets.tried.update(bodies)
        return bodies

    def _produce(self) -> None:
        raise NotImplementedError

    def _consume(self) -> None:
        raise NotImplementedError


class Driven(Member):
    """A client of another language, by its driver."""

    def __init__(
        self,
        name: str,
        client: RemoteClient,
        namesrv: str,
        topic: str,
        sets: Sets,
        options: dict[str, Any],
    ) -> None:
        super().__init__(name, sets)
        self._client = client
        self._topic = topic
        self._producer = client.producer(namesrv, f"p-{name}", **options)
        self._consumer = client.consumer(namesrv, f"c-{name}", GROUP, topic, **options)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._client.kill()

    def _produce(self) -> None:
        number = 0
        while self._sends:
            bodies = self._bodies(number)
            options = {"prefix": f"{self._name}.{number}"}
            number += 1
            try:
                results = self._client.send(self._producer, self._topic, AT_ONCE, **options)
            except ClientError:
                time.sleep(0.2)  # the outcome is unknown
                continue
            for body, result in zip(bodies, results, strict=False):
                if result.get("status") == "SEND_OK":
                    self._sets.acked.add(body)

    def _consume(self) -> None:
        seen = 0
        while self._lives:
            messages = self._client.messages(self._consumer)
            self._sets.got.update(message["body"] for message in messages[seen:])
            seen = len(messages)
            time.sleep(LOOK_S)


class Python(Member):
    """The SDK."""

    def __init__(self, namesrv: str, topic: str, sets: Sets) -> None:
        super().__init__("python", sets)
        self._url = f"mq://{namesrv}"
        self._topic = topic

    def _produce(self) -> None:
        number = 0
        with connect(self._url, timeout=10) as mq:
            while self._sends:
                for body in self._bodies(number):
                    try:
                        mq.send(self._topic, body.encode())
                    except AerobeeError:
                        time.sleep(0.1)
                        continue
                    self._sets.acked.add(body)
                number += 1

    def _consume(self) -> None:
        options = ConsumerOptions(commit_interval=0.5)
        with (
            connect(self._url) as mq,
            mq.consumer(self._topic, group=GROUP, options=options) as inbox,
        ):
            while self._lives:
                with suppress(TimeoutError, AerobeeError):
                    message = inbox.get(timeout=LOOK_S)
                    if message is None:
                        continue
                    self._sets.got[bytes(message.body).decode()] += 1
                    message.ack()
