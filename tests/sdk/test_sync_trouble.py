"""The synchronous facade with threads, forks and exiting programs."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sdk.reading import transport_to

from aerobee import AerobeeError, Closed, ConsumerOptions, Unconfirmed
from aerobee.sync import connect
from aerobee.testing import EmbeddedBroker


async def test_closing_twice_is_no_error_and_a_closed_client_says_so(
    aerobee_broker: EmbeddedBroker,
) -> None:
    def use() -> None:
        with connect(aerobee_broker.url) as mq:
            mq.send("orders", b"x")
            inbox = mq.consumer("orders", group="g")
            found = mq.find("orders")
            with mq.consumer("orders", group="other"):
                mq.close()
        mq.close()
        with pytest.raises(Closed):
            mq.send("orders", b"x")
        with pytest.raises(Closed):
            mq.admin.topics()
        with pytest.raises(Closed):
            next(found)
        with pytest.raises(Closed), inbox:
            pass

    await asyncio.to_thread(use)


async def test_a_call_in_another_thread_ends_when_the_client_is_closed(
    aerobee_broker: EmbeddedBroker,
) -> None:
    errors: list[BaseException] = []

    def use() -> None:
        mq = connect(aerobee_broker.url)
        mq.send("orders", b"first")
        transport_to(mq._made, aerobee_broker.address).pause_reading()  # the answer never gets here

        def call(work: Callable[[], object]) -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        route = mq._made._core.routes.cached("orders")
        assert route is not None
        [queue, *_] = route.read_queues()
        works: list[Callable[[], object]] = [
            lambda: mq.send("orders", b"second", timeout=30),
            lambda: mq.pull(queue, 0, wait=30),
        ]
        threads = [threading.Thread(target=call, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        threads[0].join(0.2)
        mq.close()
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()

    await asyncio.to_thread(use)
    assert sorted(type(error).__name__ for error in errors)[1] == Unconfirmed.__name__
    assert all(isinstance(error, AerobeeError) for error in errors)


async def test_queues_are_looked_at_in_the_loop_that_changes_them(
    aerobee_broker: EmbeddedBroker,
) -> None:
    def use() -> None:
        with (
            connect(aerobee_broker.url) as mq,
            mq.consumer("orders", group="g") as inbox,
        ):
            assignment = inbox._made._member.assignment
            looked: list[str] = []

            class Watched(dict[Any, Any]):
                def __iter__(self) -> Iterator[Any]:
                    looked.append(threading.current_thread().name)
                    return super().__iter__()

            assignment._queues = Watched(assignment._queues)
            assert inbox.queues == []
            assert set(looked) == {"aerobee"}

    await asyncio.to_thread(use)


async def run_script(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        lambda: subprocess.run(
            [sys.executable, "-X", "dev", "-c", text, *arguments],
            capture_output=True,
            text=True,
            timeout=20,
        )
    )


async def test_a_client_taken_along_by_a_fork_is_refused_not_hung(
    aerobee_broker: EmbeddedBroker,
) -> None:
    script = """
import os, sys
from aerobee import Closed
from aerobee.sync import connect
mq = connect(sys.argv[1])
mq.send("orders", b"parent")
child = os.fork()
if child == 0:
    try:
        mq.send("orders", b"child")
    except Closed as error:
        print(error, flush=True)
        mq.close()
        os._exit(7)
    os._exit(8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
mq.send("orders", b"parent again")
mq.close()
"""
    done = await run_script(script, aerobee_broker.url)
    assert "fork" in done.stdout and done.stdout.splitlines()[-1] == "7"
    assert done.returncode == 0, done.stderr


async def test_a_program_that_forgets_to_close_ends(aerobee_broker: EmbeddedBroker) -> None:
    script = """
import sys
from aerobee.sync import connect
mq = connect(sys.argv[1])
mq.send("orders", b"x")
inbox = mq.consumer("orders", group="g").__enter__()
for message in inbox:
    print(message.body)
    break
producer = mq.buffered_producer("orders")
producer.send(b"y")
"""
    done = await run_script(script, aerobee_broker.url)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


async def test_a_callback_that_closes_its_client_gets_an_error_and_the_client_stays_open(
    aerobee_broker: EmbeddedBroker,
) -> None:
    script = """
import sys
from aerobee import Verdict
from aerobee.sync import connect
mq = connect(sys.argv[1])
def check(half):
    try:
        mq.close()
    except RuntimeError as error:
        print(error)
    return Verdict.ROLLBACK
with mq.transactions("orders", group="g", check=check) as producer:
    try:
        with producer.begin(b"half"):
            raise ValueError("the check decides")
    except ValueError:
        mq.send("orders", b"later")
mq.close()
"""
    done = await run_script(script, aerobee_broker.url)
    assert done.returncode == 0, done.stderr
    assert "cannot be called from its own callbacks" in done.stdout


async def test_a_handler_in_a_thread_closes_its_consumer_and_its_message_is_acked(
    aerobee_broker: EmbeddedBroker,
) -> None:
    script = """
import sys
from aerobee.sync import connect
with connect(sys.argv[1]) as mq:
    mq.send("orders", b"last")
    with mq.consumer("orders", group="g") as inbox:
        def handle(message):
            try:
                mq.close()
            except RuntimeError as error:
                print(error)
            inbox.close()
            inbox.close()
        inbox.run(handle, concurrency=2)
    print(mq.admin.members("g"), sum(row.lag for row in mq.admin.lag("g", "orders")))
"""
    done = await run_script(script, aerobee_broker.url)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    refused, left = done.stdout.splitlines()
    assert refused == "a handler cannot close its client: it can close its consumer"
    assert left == "[] 0"


async def test_a_client_whose_closing_fails_leaves_no_thread_behind(
    aerobee_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    path = tmp_path / "offsets.json"
    options = ConsumerOptions(commit_interval=1000, state_path=path)

    def use() -> None:
        mq = connect(aerobee_broker.url)
        mq.send("orders", b"x")
        inbox = mq.consumer("orders", group="g", broadcast=True, start="first", options=options)
        inbox.__enter__()
        message = inbox.get(5)
        assert message is not None
        message.ack()
        path.unlink()
        path.mkdir()
        with pytest.raises(AerobeeError, match="cannot be written"):
            mq.close()
        assert not mq._loop._thread.is_alive()

    await asyncio.to_thread(use)
