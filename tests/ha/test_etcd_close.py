"""Closing the adapter of etcd while its watch connects."""

from __future__ import annotations

import asyncio
import threading

import pytest
from waiting import until

from aerobee.broker.ha.etcd import EtcdArbiter


class Silent:
    """A watch without news: a read of it takes SILENCE_S."""

    reads = 0

    def readline(self) -> bytes:
        self.reads += 1
        return b""


async def test_a_watch_that_connects_while_it_is_closed_does_not_wait_for_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arbiter = EtcdArbiter(["http://127.0.0.1:1"], "/test/orders", 1, 2000)
    connecting, aborted, response = threading.Event(), threading.Event(), Silent()

    def begin(*_: object) -> Silent:
        connecting.set()
        assert aborted.wait(20)
        return response

    monkeypatch.setattr(arbiter._watching, "begin", begin)
    monkeypatch.setattr(arbiter._watching, "abort", aborted.set)
    watching = asyncio.create_task(arbiter.changed())
    await until(connecting.is_set)
    await arbiter.close()
    assert response.reads == 0
    watching.cancel()
