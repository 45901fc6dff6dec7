"""Name servers that cannot be reached, or are reached and never answer, beside one that does.

Each client allows 1,000 s for a request: a look-up that waited for the dead server would not end.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest
from waiting import until

from aerobee import ConnectFailed, RequestTimeout, connect
from aerobee.client.transport import hedged
from aerobee.testing import EmbeddedBroker

PATIENT_S = 1000.0
HANGS_S = 100.0


class SilentServer(asyncio.Protocol):
    """Accepts connections and answers nothing."""

    def __init__(self) -> None:
        self.address = ""
        self.requests = 0
        self.connections = 0

    def connection_made(self, _transport: asyncio.BaseTransport) -> None:
        self.connections += 1

    def data_received(self, _data: bytes) -> None:
        self.requests += 1


@asynccontextmanager
async def silent_server() -> AsyncIterator[SilentServer]:
    silent = SilentServer()
    server = await asyncio.get_running_loop().create_server(lambda: silent, "127.0.0.1", 0)
    async with server:
        silent.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield silent


@contextmanager
def unreachable_address() -> Iterator[str]:
    """An address where Linux drops the packets of new connections: its backlog is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:
            one = stack.enter_context(socket.socket())
            one.settimeout(0.2)
            try:
                one.connect(listener.getsockname())
            except TimeoutError:
                break
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_name_server_that_never_answers_does_not_hold_up_a_look_up(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with silent_server() as silent, asyncio.timeout(HANGS_S):
        url = f"mq://{silent.address},{aerobee_broker.namesrv}"
        async with connect(url, timeout=PATIENT_S) as mq:
            await mq.send("orders", b"one")
            assert silent.requests == 1
            for _ in range(5):
                assert await mq.queues("orders")
            assert await mq.admin.brokers()
            assert silent.requests == 1, "the one that has answered is asked first"


async def test_a_name_server_that_cannot_be_reached_does_not_hold_up_a_client(
    aerobee_broker: EmbeddedBroker,
) -> None:
    with unreachable_address() as nowhere:
        async with (
            asyncio.timeout(HANGS_S),
            connect(f"mq://{nowhere},{aerobee_broker.namesrv}", timeout=PATIENT_S) as mq,
        ):
            await mq.send("orders", b"one")
            assert await mq.queues("orders")


async def test_the_next_name_server_is_asked_at_once_when_one_refuses(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hedged, "HEDGE_S", PATIENT_S)
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{bound.getsockname()[1]}"
        async with asyncio.timeout(HANGS_S):
            async with connect(f"mq://{closed},{aerobee_broker.namesrv}") as mq:
                await mq.send("orders", b"one")


async def test_a_silent_connection_is_dropped_though_another_server_has_answered(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with silent_server() as silent, asyncio.timeout(HANGS_S):
        url = f"mq://{silent.address},{aerobee_broker.namesrv}"
        async with connect(url, timeout=1.0) as mq:
            await mq.send("orders", b"one")
            assert silent.requests == silent.connections == 1
            await until(lambda: mq._core.remoting.known(silent.address) is None)


async def test_the_error_names_every_server_when_none_answers() -> None:
    async with silent_server() as one, silent_server() as two:
        async with connect(f"mq://{one.address},{two.address}", timeout=0.5) as mq:
            with pytest.raises(ConnectFailed) as failed:
                await mq.queues("orders")
            assert one.address in str(failed.value) and two.address in str(failed.value)
        async with connect(f"mq://{one.address}", timeout=0.2) as mq:
            with pytest.raises(RequestTimeout):
                await mq.queues("orders")


async def test_a_look_up_that_is_cancelled_asks_nobody_any_more() -> None:
    async with (
        silent_server() as one,
        silent_server() as two,
        connect(f"mq://{one.address},{two.address}", timeout=PATIENT_S) as mq,
    ):
        look_up = asyncio.create_task(mq._core.routes._ask("orders"))
        await until(lambda: one.requests and two.requests)
        look_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await look_up
        names = {f"ask {one.address}", f"ask {two.address}"}
        await until(lambda: not {task.get_name() for task in asyncio.all_tasks()} & names)
