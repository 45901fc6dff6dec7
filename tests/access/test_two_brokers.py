"""`aerobee user` in a cluster of two brokers of which one cannot make the change."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aerobee_command import aerobee
from waiting import until

from access.guarded import Asker, guarded_broker
from aerobee import connect
from aerobee.broker.daemon.app import AppBroker

INNER = json.dumps({"accessKey": "root", "secretKey": "a-secret-of-root"})


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[AppBroker, AppBroker]]:
    async with guarded_broker(tmp_path / "one", namesrv_listen_port=0) as one:
        joined = {"namesrv_addr": f"127.0.0.1:{one.namesrv_port}", "broker_name": "second"}
        credentials = {"inner_client_authentication_credentials": INNER}
        async with (
            guarded_broker(tmp_path / "two", **joined, **credentials) as two,
            connect(url_of(one)) as mq,
        ):

            async def both_are_known() -> bool:
                return len(await mq.admin.brokers()) == 2

            await until(both_are_known)
            yield one, two


def url_of(app: AppBroker) -> str:
    return f"mq://root:a-secret-of-root@127.0.0.1:{app.namesrv_port}"


async def may_sign(app: AppBroker, secret: str) -> bool:
    async with Asker.connected(app.broker_port) as asker:
        return (await asker.ask("app", 26, secret=secret)).code == 0


def refuse(app: AppBroker) -> Path:
    """Its access.json cannot be saved."""
    obstacle = Path(app.broker.guard.book.path + ".tmp")
    obstacle.mkdir(parents=True)
    return obstacle


async def test_a_rotation_that_one_broker_missed_is_told_and_can_be_finished(
    pair: tuple[AppBroker, AppBroker],
) -> None:
    one, two = pair
    url = url_of(one)
    old = (await aerobee("user", "add", "app", "--super", "--json", url=url)).json["secret_key"]
    obstacle = refuse(two)
    partly = await aerobee("user", "rotate", "app", "--json", url=url, code=1)
    new = partly.json["secret_key"]
    error = partly.error["error"]
    assert f"done on 127.0.0.1:{one.broker_port}, not done on 127.0.0.1:{two.broker_port}" in error
    assert "user rotate app --secret-from FILE" in error and "24 hours" in error
    assert [await may_sign(one, secret) for secret in (old, new)] == [True, True]
    assert [await may_sign(two, secret) for secret in (old, new)] == [True, False]
    obstacle.rmdir()
    again = await aerobee(
        "user", "rotate", "app", "--secret-from", "-", "--json", url=url, stdin=f"{new}\n".encode()
    )
    assert again.json["secret_key"] == new
    for app in pair:
        assert [await may_sign(app, secret) for secret in (old, new)] == [True, True]
    empty = await aerobee("user", "rotate", "app", "--secret-from", "-", url=url, code=2)
    assert "no secret" in empty.err


async def test_a_broker_that_fails_first_keeps_no_other_from_being_changed(
    pair: tuple[AppBroker, AppBroker],
) -> None:
    one, two = pair
    url = url_of(one)
    obstacle = refuse(one)
    partly = await aerobee("user", "add", "app", "--super", url=url, code=1)
    assert f"done on 127.0.0.1:{two.broker_port}, not done on 127.0.0.1:{one.broker_port}" in (
        partly.err
    )
    assert "aerobee user remove app" in partly.err and partly.out == ""
    obstacle.rmdir()
    await aerobee("user", "remove", "app", "--yes", url=url, code=1)  # it was on the other only
    made = await aerobee("user", "add", "app", "--super", "--json", url=url)
    for app in pair:
        assert await may_sign(app, made.json["secret_key"])
    obstacle = refuse(two)
    partly = await aerobee("user", "disable", "app", url=url, code=1)
    assert f"not done on 127.0.0.1:{two.broker_port}" in partly.err
    obstacle.rmdir()
    await aerobee("user", "disable", "app", url=url)
    for app in pair:
        assert not await may_sign(app, made.json["secret_key"])
