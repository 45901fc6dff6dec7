"""What the SDK's tests share."""

import asyncio
import inspect

import pytest


@pytest.fixture
def until():
    """`await until(condition)`: wait for what another task or the broker brings about."""

    async def wait(condition, seconds=10.0):
        async with asyncio.timeout(seconds):
            while True:
                answer = condition()
                if await answer if inspect.isawaitable(answer) else answer:
                    return
                await asyncio.sleep(0.02)

    return wait
