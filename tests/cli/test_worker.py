"""`aerobee worker`: a real process with an application of the test's own."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from waiting import until

from aerobee import Client, Message, Worker, connect
from aerobee.testing import EmbeddedBroker

APP = """
import asyncio
from aerobee import Message, Worker

app = Worker("mq://127.0.0.1:1", wait=0.5)

@app.handler("jobs", group="workers", concurrency=2)
async def work(message: Message) -> None:
    with open("begun.txt", "ab") as file:
        file.write(b"x")
    await asyncio.sleep(float(message.body))
    await app.mq.send("done", b"one of " + VERSION)

@app.handler("plain", group="workers-plain")
def plain(message: Message) -> None:
    open("plain.txt", "ab").write(message.body)
"""
COMMAND = str(Path(sys.executable).with_name("aerobee"))


@asynccontextmanager
async def worker(
    folder: Path, *words: str, url: str, own_group: bool = False
) -> AsyncIterator[tuple[asyncio.subprocess.Process, bytearray]]:
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, "worker", *words),
        cwd=folder,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "AEROBEE_URL": url},
        start_new_session=own_group,
    )
    said = bytearray()

    async def listen() -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(1000):
            said.extend(data)

    listening = asyncio.create_task(listen())
    try:
        yield process, said
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await listening


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(f"VERSION = b'1'\n{APP}")
    return tmp_path


async def bodies(mq: Client, topic: str) -> list[bytes]:
    return [row.body async for row in mq.find(topic)] if topic in await mq.admin.topics() else []


async def test_a_signal_lets_the_handlers_at_work_end(
    aerobee_broker: EmbeddedBroker, folder: Path
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("jobs", b"0")
        await mq.send("plain", b"plain")
        async with worker(folder, "shop:app", url=aerobee_broker.url) as (process, said):
            await until(lambda: bodies(mq, "done"), 20)
            await until(lambda: (folder / "plain.txt").exists())
            await mq.send("jobs", b"1.5")
            await until(lambda: (folder / "begun.txt").stat().st_size == 2, 20)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                assert await process.wait() == 0, said.decode()
        assert await bodies(mq, "done") == [b"one of 1"] * 2
        assert sum(row.lag for row in await mq.admin.lag("workers", "jobs")) == 0
        assert await mq.admin.members("workers") == []


async def test_a_second_signal_ends_at_once(aerobee_broker: EmbeddedBroker, folder: Path) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("jobs", b"0")
        async with worker(folder, "shop:app", url=aerobee_broker.url) as (process, said):
            await until(lambda: bodies(mq, "done"), 20)
            await mq.send("jobs", b"600")
            await until(lambda: (folder / "begun.txt").stat().st_size == 2, 20)
            process.send_signal(signal.SIGINT)
            await until(lambda: b"stopping" in said)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                assert await process.wait() == -signal.SIGTERM


async def test_a_change_of_a_file_starts_it_again(
    aerobee_broker: EmbeddedBroker, folder: Path
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("jobs", b"0")
        words = ("shop:app", "--reload", "--concurrency", "1")
        async with worker(folder, *words, url=aerobee_broker.url) as (process, said):
            await until(lambda: bodies(mq, "done"), 20)
            (folder / "shop.py").write_text(f"VERSION = b'2'\n{APP}")
            await until(lambda: said.count(b"working") == 2, 20)
            await mq.send("jobs", b"0")
            await until(lambda: has_two(mq), 20)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                assert await process.wait() == 0, said.decode()
        assert sorted(await bodies(mq, "done")) == [b"one of 1", b"one of 2"]


async def test_ctrl_c_in_a_terminal_lets_the_handlers_at_work_end_with_reload_too(
    aerobee_broker: EmbeddedBroker, folder: Path
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("jobs", b"0")
        words = ("shop:app", "--reload")
        url = aerobee_broker.url
        async with worker(folder, *words, url=url, own_group=True) as (process, said):
            await until(lambda: bodies(mq, "done"), 20)
            await mq.send("jobs", b"1.5")
            await until(lambda: (folder / "begun.txt").stat().st_size == 2, 20)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to parent and child
            async with asyncio.timeout(20):
                assert await process.wait() == 0, said.decode()
        assert await bodies(mq, "done") == [b"one of 1"] * 2
        assert sum(row.lag for row in await mq.admin.lag("workers", "jobs")) == 0


async def has_two(mq: Client) -> bool:
    return len(await bodies(mq, "done")) == 2


@pytest.mark.parametrize(
    ("target", "code", "text"),
    [
        ("shop", 2, "is not MODULE:APP"),
        ("shop:nothing", 2, "is not an aerobee.Worker"),
        ("shoe:app", 2, "no module 'shoe'"),
    ],
)
async def test_mistakes_are_reported(folder: Path, target: str, code: int, text: str) -> None:
    async with worker(folder, target, url="mq://127.0.0.1:1") as (process, said):
        async with asyncio.timeout(20):
            assert await process.wait() == code
    assert text in said.decode()


async def test_a_broker_that_is_not_there_is_reported(folder: Path) -> None:
    async with worker(folder, "shop:app", url="mq://127.0.0.1:1") as (process, said):
        async with asyncio.timeout(20):
            assert await process.wait() == 4
    assert "no connection to 127.0.0.1:1" in said.decode()


async def test_a_worker_runs_inside_a_program_too(aerobee_broker: EmbeddedBroker) -> None:
    app = Worker(aerobee_broker.url)
    seen = []

    @app.handler("jobs", group="workers")
    async def work(message: Message) -> None:
        seen.append(message.body)
        app.stop()

    running = asyncio.create_task(app.run())
    async with connect(aerobee_broker.url) as mq:
        await mq.send("jobs", b"x")
        async with asyncio.timeout(10):
            await running
    assert seen == [b"x"]


async def test_a_worker_that_waits_for_its_cluster_can_be_stopped() -> None:
    app = Worker("mq://127.0.0.1:1", wait=3600)

    @app.handler("jobs", group="workers")
    async def work(message: Message) -> None:
        raise AssertionError

    running = asyncio.create_task(app.run())
    await until(lambda: app._stop is not None)
    app.stop()
    async with asyncio.timeout(20):
        await running
