"""The dashboard's expressions, asked of a real Prometheus that scrapes a broker at work."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from docs.test_dashboard import expressions
from peers.daemon import Daemon
from peers.tools import free_port

from aerobee import Client, ConsumerOptions, Message, Verdict, connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NEED_SLAVES = {"aerobee_slave_behind_bytes"}


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    if shutil.which("prometheus") is None:
        pytest.skip("this needs prometheus (Debian: apt-get install prometheus)")
    file = folder / "prometheus.yml"
    scrape = {"job_name": "aerobee", "static_configs": [{"targets": [target]}]}
    file.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={file}", f"--web.listen-address={address}"),
                f"--storage.tsdb.path={folder / 'series'}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield address
    finally:
        process.terminate()
        process.wait(30)


def is_answered(address: str, expression: str) -> bool:
    """Whether it gives values; an error of the language is an exception."""
    text = expression.replace("$cluster", ".*").replace("$node", ".*")
    query = urllib.parse.urlencode({"query": text})
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=30) as got:
            return bool(json.load(got)["data"]["result"])
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{text}: {error.read().decode()}") from None
    except OSError:  # it does not listen yet
        return False


async def traffic(mq: Client) -> None:
    """Of each kind that the dashboard shows, until it is cancelled."""
    options = ConsumerOptions(max_retries=0)

    async def handle(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("a dead letter")

    def check(_: Message) -> Verdict:
        return Verdict.COMMIT

    async with (
        mq.consumer("orders", group="billing", options=options) as inbox,
        mq.transactions("orders", group="shop", check=check) as shop,
    ):
        running = asyncio.create_task(inbox.run(handle))
        try:
            while True:
                for body in (b"good", b"bad"):
                    await mq.send("orders", body)
                await mq.send("orders", b"later", delay=1)
                async with shop.begin(b"paid"):
                    pass
                async with shop.begin(b"not paid") as half:
                    half.rollback()
                await asyncio.sleep(0.2)
        finally:
            running.cancel()


async def test_every_expression_gives_values(tmp_path: Path) -> None:
    wanted = [each for each in expressions() if not any(name in each for name in NEED_SLAVES)]
    with Daemon(tmp_path) as daemon:
        ready = daemon.ready()
        with prometheus(tmp_path, daemon.metrics_address()) as address:
            async with connect(f"mq://{ready['namesrv']}") as mq:
                busy = asyncio.create_task(traffic(mq))
                left = wanted
                async with asyncio.timeout(240):
                    while left and not busy.done():
                        await asyncio.sleep(1)
                        left = [
                            each
                            for each in left
                            if not await asyncio.to_thread(is_answered, address, each)
                        ]
                assert not busy.done(), busy
                busy.cancel()
    assert left == []
