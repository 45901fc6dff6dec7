"""Every example runs, as its reader would run it, and prints what it promises."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from aerobee.testing import EmbeddedBroker

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTS = {
    "batching.py": "20000 messages stored",
    "broadcast.py": "reader two got 'extra, extra'",
    "dead_letters.py": "dead letter of topic parcels: no such address",
    "in_order.py": "grace: created -> paid -> packed -> shipped",
    "order_app.py": "out of order: []",
    "queries_and_admin.py": "lag after a reset: 1",
    "quickstart.py": "received 'hello, world' with tag friendly",
    "reminders.py": "at a moment",
    "request_reply.py": "coffee: 3.20\npetrol: not on the menu",
    "transactions.py": "received: order 1 is paid\n",
    "without_asyncio.py": "received 'dear reader'",
    "workers.py": "20 jobs done, the last one was 7",
}


async def run(*command: str, url: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "AEROBEE_URL": url},
    )
    try:
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        output, _ = await process.communicate()
        pytest.fail(f"{command} did not end:\n{output.decode()}")
    assert process.returncode == 0, output.decode()
    return output.decode()


def test_every_example_is_run_here() -> None:
    found = {path.name for path in EXAMPLES.glob("*.py")}
    elsewhere = {"lake_without_spark.py"}  # tests/docs/test_lake_without_spark.py: needs more
    assert found == {*PRINTS, "test_my_application.py", *elsewhere}


@pytest.mark.parametrize("name", PRINTS)
async def test_each_example_prints_what_it_promises(
    aerobee_broker: EmbeddedBroker, name: str
) -> None:
    output = await run(sys.executable, str(EXAMPLES / name), url=aerobee_broker.url)
    assert PRINTS[name] in output


async def test_the_order_application_is_not_disturbed_by_what_other_examples_left(
    aerobee_broker: EmbeddedBroker,
) -> None:
    url = aerobee_broker.url
    for name in ("request_reply.py", "reminders.py", "transactions.py"):
        await run(sys.executable, str(EXAMPLES / name), url=url)
    output = await run(sys.executable, str(EXAMPLES / "order_app.py"), "1", url=url)
    assert PRINTS["order_app.py"] in output
    assert "malformed" not in output


async def test_the_example_of_a_test_passes(aerobee_broker: EmbeddedBroker) -> None:
    path = str(EXAMPLES / "test_my_application.py")
    words = (sys.executable, "-m", "pytest", "-q", path, "-p", "no:cacheprovider")
    assert "1 passed" in await run(*words, url=aerobee_broker.url)
