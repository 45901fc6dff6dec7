"""Shell completions for topics, groups and settings; none if the cluster does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from aerobee.client.client import Client

SECONDS_MAX: Final = 1.0  # a user waits at the prompt


def topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return _ask(ctx, incomplete, lambda mq: mq.admin.topics())


def groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return _ask(ctx, incomplete, lambda mq: mq.admin.groups())


def setting_keys(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from aerobee.broker.settings.known import known_keys

    return [key for key in known_keys() if key.lower().startswith(incomplete.lower())]


def setting_pairs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [f"{key}=" for key in setting_keys(ctx, param, incomplete)]


def topic_argument(name: str = "topic", **options: Any) -> Callable[[Any], Any]:
    return click.argument(name, shell_complete=topics, **options)


def group_argument(name: str = "group", **options: Any) -> Callable[[Any], Any]:
    return click.argument(name, shell_complete=groups, **options)


def _ask(
    ctx: click.Context, incomplete: str, question: Callable[[Client], Awaitable[list[str]]]
) -> list[str]:
    from aerobee.client.client import Client

    async def names() -> list[str]:
        async with (
            asyncio.timeout(SECONDS_MAX),
            Client(ctx.params.get("url"), timeout=SECONDS_MAX) as mq,
        ):
            return await question(mq)

    try:
        return [name for name in asyncio.run(names()) if name.startswith(incomplete)]
    except Exception:  # an error would only disturb the line that is being typed
        return []
