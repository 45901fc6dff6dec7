"""Users and rights changed by wire and by the command; what is written down; no secret anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aerobee_command
import pytest
import structlog
from peers.in_process import running_broker
from waiting import until

from access.guarded import USERS, Asker, guarded_broker, make_topics, send_fields, write_users
from aerobee import NoPermission, connect
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.daemon.metrics import Collector
from aerobee.broker.daemon.wiring import make_front

NO = 16


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppBroker]:
    async with guarded_broker(tmp_path, namesrv_listen_port=0) as broker:
        yield broker


def url_of(app: AppBroker, user: str) -> str:
    return f"mq://{user}:a-secret-of-{user}@127.0.0.1:{app.namesrv_port}"


def entry(resource: str, *actions: str, decision: str = "Allow") -> dict[str, Any]:
    one = {"resource": resource, "actions": list(actions), "sourceIps": [], "decision": decision}
    return {"policies": [{"policyType": "Custom", "entries": [one]}]}


async def test_mqadmin_of_5_makes_and_changes_users_and_rights(app: AppBroker) -> None:
    await make_topics(app, "t")
    async with Asker.connected(app.broker_port) as asker:

        async def done(code: int, ext: dict[str, Any], body: Any = b"", expected: int = 0) -> Any:
            answer = await asker.ask("root", code, ext, body)
            assert answer.code == expected, answer.remark
            return json.loads(bytes(answer.body)) if answer.body else None

        async def send() -> int:
            return (await asker.ask("new", 310, send_fields("t"), b"x")).code

        name, subject = {"username": "new"}, {"subject": "User:new"}
        made = {"username": "new", "password": "a-secret-of-new", "userType": "Normal"}
        assert await done(3004, name) is None
        await done(3001, name, made)
        await done(3001, name, made, 1)
        assert await send() == NO
        await done(3006, subject, subject | entry("Topic:t", "Pub"))
        assert await send() == 0
        await done(3007, subject, subject | entry("Topic:t", "Pub", decision="Deny"))
        assert await send() == NO
        await done(3007, subject, subject | entry("Topic:t", "All"))
        await done(3007, subject, subject | entry("Group:g*", "Sub"))
        acl = await done(3009, subject)
        assert acl["subject"] == "User:new"
        assert [each["resource"] for each in acl["policies"][0]["entries"]] == [
            "Topic:t",
            "Group:g*",
        ]
        assert [each["subject"] for each in await done(3010, {"subjectFilter": "new"})] == [
            "User:new"
        ]
        await done(3008, subject | {"policyType": "Custom", "resource": "Group:g*"})
        assert await send() == 0
        await done(3002, name, {"username": "new", "userStatus": "disable"})
        assert await send() == NO
        assert await done(3004, name) == {
            "username": "new",
            "userType": "Normal",
            "userStatus": "disable",
        }
        await done(3002, name, {"username": "new", "userStatus": "enable", "userType": "Super"})
        assert await send() == 0
        assert "new" in {row["username"] for row in await done(3005, {"filter": "ne"})}
        await done(3003, name)
        assert await send() == NO
        await done(3003, name, expected=1)
        await done(3003, {"username": "pub"}, expected=1)  # defined in the operator's file


async def test_mqadmin_of_4_makes_and_changes_accounts(app: AppBroker) -> None:
    await make_topics(app, "t")
    async with Asker.connected(app.broker_port) as asker:

        async def done(code: int, ext: dict[str, Any], expected: int = 0) -> Any:
            answer = await asker.ask("root", code, ext)
            assert answer.code == expected, answer.remark
            return answer

        async def send(user: str = "new") -> int:
            return (await asker.ask(user, 310, send_fields("t"), b"x")).code

        await done(50, {"accessKey": "new", "secretKey": "a-secret-of-new"})
        assert await send() == NO
        await done(50, {"accessKey": "new", "topicPerms": "t=PUB,u=SUB", "groupPerms": "g=SUB"})
        assert await send() == 0
        await done(50, {"accessKey": "new", "topicPerms": "t=DENY"})
        assert await send() == NO
        await done(50, {"accessKey": "other"}, 209)
        version = await done(52, {})
        assert json.loads(version.ext["version"])["counter"] > 1
        await done(53, {"globalWhiteAddrs": "127.0.0.1,10.0.0.*"})
        assert await send("") == 0
        await done(53, {"globalWhiteAddrs": "10.0.0.*"})
        assert await send("") == NO
        await done(53, {"globalWhiteAddrs": "somewhere"}, 211)
        await done(51, {"accessKey": "new"})
        await done(51, {"accessKey": "new"}, 210)


async def test_without_access_control_nobody_can_make_users(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as app, Asker.connected(app.broker_port) as asker:
        for code, ext in ((50, {"accessKey": "x"}), (3005, {}), (52, {})):
            assert (await asker.ask("", code, ext)).code == 604


async def test_what_is_changed_by_wire_outlives_a_restart(tmp_path: Path) -> None:
    for life in range(2):
        async with guarded_broker(tmp_path) as app, Asker.connected(app.broker_port) as asker:
            made = {"username": "new", "password": "a-secret-of-new", "userType": "Super"}
            if life == 0:
                assert (await asker.ask("root", 3001, {"username": "new"}, made)).code == 0
            assert (await asker.ask("new", 26)).code == 0
            assert os.stat(app.broker.guard.book.path).st_mode & 0o077 == 0


async def test_the_last_super_user_stays(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    made = json.loads(await aerobee("user", "add", "root", "--super", "--json", "--store", store))
    async with (
        running_broker(tmp_path, acl_enable=True) as app,
        Asker.connected(app.broker_port) as asker,
    ):
        for code, body in ((3003, {}), (3002, {"userType": "Normal"})):
            name = {"username": "root"}
            answer = await asker.ask("root", code, name, body, secret=made["secret_key"])
            assert answer.code == 1 and "no super user" in (answer.remark or "")


async def test_a_secret_that_was_rotated_is_good_for_a_day(app: AppBroker) -> None:
    async with Asker.connected(app.broker_port) as asker:
        name = {"username": "new"}
        made = {"password": "old-one", "userType": "Super"}
        assert (await asker.ask("root", 3001, name, made)).code == 0
        changed = {"password": "new-one", "keepOld": True}
        assert (await asker.ask("root", 3002, name, changed)).code == 0
        for secret in ("old-one", "new-one"):
            assert (await asker.ask("new", 26, secret=secret)).code == 0
        account = app.broker.guard.book.accounts["new"]
        account["oldSecretUntil"] = 1
        await app.broker.guard.book.change(lambda accounts, white: None)
        assert (await asker.ask("new", 26, secret="old-one")).code == NO
        assert (await asker.ask("new", 26, secret="new-one")).code == 0


async def test_a_change_of_the_files_is_found_and_a_denial_follows(tmp_path: Path) -> None:
    from aerobee.broker.base.clock import VirtualClock

    clock = VirtualClock()
    path = write_users(tmp_path)
    settings: dict[str, Any] = {"acl_enable": True, "acl_file": str(path)}
    async with running_broker(tmp_path, clock, **settings) as app:
        await make_topics(app, "t")
        async with Asker.connected(app.broker_port) as asker:
            assert (await asker.ask("pub", 310, send_fields("t"), b"x")).code == 0
            write_users(tmp_path, USERS.replace("allow Topic:t Pub]", "deny Topic:t Pub]"))
            await clock.advance(6)
            assert (await asker.ask("pub", 310, send_fields("t"), b"x")).code == NO


async def test_denials_and_administration_are_written_down_and_counted(app: AppBroker) -> None:
    with structlog.testing.capture_logs() as lines:
        async with Asker.connected(app.broker_port) as asker:
            for _ in range(3):
                await asker.ask("nothing", 25, {}, b"fileReservedTime=0")
            await asker.ask("root", 25, {}, b"fileReservedTime=48")
            await asker.ask("root", 215, {"topic": "gone"})
            await asker.ask("root", 25, {}, b"nosuch=1")
            entry = {"resource": "Topic:t", "actions": ["Pub", "Sub"], "decision": "Allow"}
            policies = [{"policyType": "Custom", "entries": [entry]}]
            subject = {"subject": "User:nobody"}
            await asker.ask("root", 3007, subject, {"policies": policies})
    denied = [line for line in lines if line["event"] == "denied"]
    assert len(denied) == 1  # the rest are only counted
    assert (denied[0]["user"], denied[0]["code"]) == ("nothing", 25)
    assert denied[0]["peer"] == "127.0.0.1"
    done = [line for line in lines if line["event"] == "administration"]
    assert [(line["user"], line["code"], line["outcome"]) for line in done] == [
        ("root", 25, 0),
        ("root", 215, 0),
        ("root", 25, 29),
        ("root", 3007, 1),
    ]
    assert (done[0]["request"], done[0]["settings"]) == (
        "UPDATE_BROKER_CONFIG",
        ["fileReservedTime"],
    )
    assert done[1]["topic"] == "gone"
    assert done[2]["settings"] == ["nosuch"] and "no setting nosuch" in done[2]["remark"]
    assert (done[3]["subject"], done[3]["policies"]) == ("User:nobody", ["Allow Topic:t Pub,Sub"])
    assert app._server is not None
    metrics = Collector(app.broker, app._server, make_front(app.broker).dispatcher).quick()
    family = next(each for each in metrics if each.name == "aerobee_requests_denied")
    assert {sample.labels["reason"]: sample.value for sample in family.samples} == {"no right": 3}


async def aerobee(*words: str, code: int = 0) -> str:
    return (await aerobee_command.aerobee(*words, code=code)).out


async def test_the_command_changes_users_of_a_running_broker(app: AppBroker) -> None:
    url = url_of(app, "root")
    made = json.loads(await aerobee("user", "add", "app", "--json", "--url", url))
    assert made["access_key"] == "app" and len(made["secret_key"]) > 40
    await aerobee("acl", "grant", "app", "Pub,Sub", "Topic:orders*", "--url", url)
    shown = await aerobee("acl", "show", "app", "--json", "--url", url)
    assert json.loads(shown)[0]["policy"] == "allow Topic:orders* Pub,Sub"
    said = await aerobee("acl", "test", "app", "Pub", "Topic:orders-1", "--url", url)
    assert said.startswith("allowed: the policy `allow Topic:orders* Pub,Sub`")
    await aerobee("acl", "test", "app", "Pub", "Topic:other", "--url", url, code=1)
    theirs = f"mq://app:{made['secret_key']}@127.0.0.1:{app.namesrv_port}"
    await make_topics(app, "orders")
    await aerobee("send", "orders", "hello", "--url", theirs)
    await aerobee("topic", "delete", "orders", "--yes", "--url", theirs, code=1)
    again = json.loads(await aerobee("user", "rotate", "app", "--json", "--url", url))
    assert again["secret_key"] != made["secret_key"]
    await aerobee("acl", "revoke", "app", "--url", url)
    await aerobee("send", "orders", "hello", "--url", theirs, code=1)
    listed = json.loads(await aerobee("user", "list", "--json", "--url", url))
    assert {"user": "app", "type": "Normal", "status": "enable", "from": ""} in listed
    await aerobee("user", "remove", "app", "--url", url, code=2)  # no terminal to confirm at
    await aerobee("user", "remove", "app", "--yes", "--url", url)


async def test_the_command_changes_the_files_before_the_first_start(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    await aerobee("user", "add", "app", "--store", store, code=1)  # no super user yet
    made = json.loads(await aerobee("user", "add", "root", "--super", "--json", "--store", store))
    await aerobee("user", "add", "app", "--store", store)
    await aerobee("acl", "grant", "app", "Pub", "Topic:t", "--store", store)
    said = await aerobee("acl", "test", "app", "Pub", "Topic:t", "--store", store)
    assert "access.json" in said
    async with (
        running_broker(tmp_path, acl_enable=True) as app,
        Asker.connected(app.broker_port) as asker,
    ):
        assert (await asker.ask("root", 26, secret=made["secret_key"])).code == 0


async def test_a_broker_that_refuses_a_stranger_is_alive_all_the_same(app: AppBroker) -> None:
    """A container's health check has no user and sends this."""
    for port in (app.broker_port, app.namesrv_port):
        for words in ((), ("--direct",)):
            url = f"mq://127.0.0.1:{port}"
            said = await aerobee("ping", "-n", "1", *words, "--json", "--url", url)
            assert [row["answer"] for row in json.loads(said)] == ["yes"]


async def test_what_is_denied_is_reported_as_such_to_the_sdk_and_by_the_doctor(
    app: AppBroker,
) -> None:
    url = url_of(app, "nothing")
    async with connect(url) as mq:
        for asked in (mq.admin.brokers(), mq.admin.members("g"), mq.admin.lag("g", "t")):
            with pytest.raises(NoPermission):
                await asked
    [found] = [
        row
        for row in json.loads(await aerobee("doctor", "--json", "--url", url, code=1))
        if row["verdict"] == "trouble"
    ]
    assert "may Get the Cluster" in found["remedy"]


async def test_a_snapshot_of_the_store_keeps_the_users_to_their_owner(tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    async with running_broker(tmp_path):
        pass
    await aerobee("user", "add", "root", "--super", "--store", str(store))
    await aerobee("store", "snapshot", str(store), str(copy))
    for path in (store, copy):
        assert os.stat(path / "config/access.json").st_mode & 0o777 == 0o600


async def test_the_sdk_sends_what_was_denied_once_and_continues(app: AppBroker) -> None:
    await make_topics(app, "t")
    denials = app.broker.guard.audit.denials
    async with connect(url_of(app, "nothing")) as mq:
        for count in (1, 2, 3):
            with pytest.raises(NoPermission, match="User:nothing has no permission to Pub Topic:t"):
                await mq.send("t", b"x")
            assert denials["no right"] == count
    async with connect(url_of(app, "prefix")) as mq:
        await make_topics(app, "t1")
        with pytest.raises(NoPermission):
            await mq.send("t1", b"x")
        await mq.send("t", b"the same broker takes this")


async def test_a_consumer_with_rights_reads_and_one_without_gets_an_error(app: AppBroker) -> None:
    await make_topics(app, "t")
    async with (
        connect(url_of(app, "sub")) as mq,
        mq.consumer("t", group="g", start="first") as inbox,
    ):
        async for message in inbox:
            assert message.body == b"first"
            await message.ack()
            break
    denials = app.broker.guard.audit.denials
    async with connect(url_of(app, "nothing")) as mq:
        with pytest.raises(NoPermission):
            async with mq.consumer("t", group="g") as inbox:
                await until(lambda: denials["no right"] > 0)
                async for _ in inbox:
                    break


async def test_planted_secrets_appear_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = '{"username":"first","password":"Xy7Q-secret-of-first"}'
    inner = '{"accessKey":"inner","secretKey":"Xy7Q-secret-of-inner"}'
    users = USERS.replace("a-secret-of", "Xy7Q-secret-of")
    settings = {
        "init_authentication_user": first,
        "inner_client_authentication_credentials": inner,
    }
    seen: list[str] = []
    async with guarded_broker(tmp_path, users, **settings) as app:
        async with Asker.connected(app.broker_port) as asker:
            root = {"secret": "Xy7Q-secret-of-root"}
            made = {"username": "new", "password": "Xy7Q-secret-of-new"}
            await asker.ask("root", 3001, {"username": "new"}, made, **root)
            await asker.ask("root", 3001, {"username": "new"}, made, **root)
            await asker.ask("root", 50, {"accessKey": "a", "secretKey": "Xy7Q-secret-a"}, **root)
            await asker.ask("root", 50, {"accessKey": "pub", "secretKey": "Xy7Q-1"}, **root)
            await asker.ask("root", 3006, {"subject": "User:new"}, b"{Xy7Q-json", **root)
            await asker.ask("pub", 310, send_fields("t"), b"x", secret="Xy7Q-wrong")
            for code in (26, 28, 52, 3004, 3005, 3009, 3010, 319):
                ext = {"username": "new", "subject": "User:new"}
                answer = await asker.ask("root", code, ext, **root)
                seen.append(f"{answer.ext} {answer.remark} {bytes(answer.body)!r}")
        guard = app.broker.guard
        seen += [repr(app.settings), repr(guard.book.current), repr(guard.__dict__)]
        seen += [repr(user) for user in guard.book.current.users.values()]
        write_users(tmp_path, users + "\n  - {accessKey: x, secretKey: Xy7Q-bad, type: bad")
        guard.book.reload()
        write_users(tmp_path, users.replace("type: Super", "type: bad"))
        guard.book.reload()
    captured = capfd.readouterr()
    text = "\n".join([*seen, captured.out, captured.err])
    assert "denied" in text and "administration" in text and "not reloaded" in text
    assert [line for line in text.splitlines() if "Xy7Q" in line] == []
