"""The order application of the examples, under a broker that is restarted and killed."""

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from effort import examples
from peers.aerobee_broker import AerobeeBroker
from waiting import grown, until

EXAMPLE = Path(__file__).parents[2] / "examples/order_app.py"


@pytest.fixture
def order_app() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("order_app", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["order_app"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["order_app"]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AerobeeBroker]:
    settings = {"transactionCheckInterval": "1000", "transactionTimeOut": "1000"}
    running = AerobeeBroker(tmp_path / "broker", **settings)
    await asyncio.to_thread(running.start)
    yield running
    await asyncio.to_thread(running.kill)


def repeated(app: Any) -> set[object]:
    return {place for place, count in app.deliveries.items() if count > 1}


@pytest.mark.timeout(180)
async def test_a_clean_restart_repeats_nothing_and_kills_lose_nothing(
    order_app: ModuleType, broker: AerobeeBroker, tmp_path: Path
) -> None:
    app = order_app.OrderApp(f"mq://{broker.namesrv}", tmp_path)
    running = asyncio.create_task(app.run())

    async def more_orders(count: int) -> None:
        """Work continues at both ends."""
        for table in ("placed", "billed"):
            await grown(partial(app.ids, table), count, 40)

    try:
        await until(lambda: app.events, 30)
        await more_orders(50)
        assert repeated(app) == set()
        held = set()  # in flight at one of the restarts
        for _ in range(examples(2, share=1)):
            held |= {place for place, count in app.in_hand.items() if count}
            before = set(app.deliveries)
            await asyncio.to_thread(broker.restart)
            held |= set(app.deliveries) - before  # delivered during the restart
            held |= {place for place, count in app.in_hand.items() if count}
            await more_orders(50)
            assert repeated(app) <= held
        for _ in range(examples(2, share=1)):
            await asyncio.to_thread(broker.kill_and_start)
            await more_orders(50)
        app.close()
        async with asyncio.timeout(60):
            await running  # ends when every placed order is completed
    finally:
        running.cancel()
    assert app.disorder() == []
