"""Users and rights of a master are its slaves' too; an operator's changes to one are reported."""

from __future__ import annotations

import stat
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from access.guarded import USERS, Asker, send_fields, write_users
from aerobee_command import aerobee
from waiting import until

from aerobee.broker.auth.copied import NOTHING_NEW, Sealing, group_of, seal, unseal, version_of
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.ha.access_sync import AccessSync
from aerobee.broker.settings import Settings
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.replica_codes import GET_ACCESS, PROMOTE
from ha.pairs import running_master, running_slave
from ha.test_locked import INNER, locked

NO = 16
SECRET = "a-planted-secret-of-late"
GROUP = group_of(Settings())


async def ask(app: AppBroker, user: str, code: int, ext: Any = None, **more: Any) -> Any:
    async with Asker.connected(app.broker_port) as asker:
        return await asker.ask(user, code, ext or {}, more.pop("body", b""), **more)


async def add_user(app: AppBroker, name: str = "late") -> None:
    body: dict[str, Any] = {"username": name, "password": SECRET, "userType": "Normal"}
    answer = await ask(app, "root", 3001, {"username": name}, body=body)
    assert answer.code == 0, answer.remark
    rule = {"resource": "Topic:t", "actions": ["Pub"], "sourceIps": [], "decision": "Allow"}
    policies = [{"policyType": "Custom", "entries": [rule]}]
    body = {"subject": f"User:{name}", "policies": policies}
    answer = await ask(app, "root", 3007, {"subject": f"User:{name}"}, body=body)
    assert answer.code == 0, answer.remark


def rules_of(app: AppBroker, name: str = "late") -> list[str] | None:
    user = app.broker.guard.book.current.users.get(name)
    return [str(rule) for rule in user.rules] if user is not None else None


def access(slave: AppBroker) -> dict[str, Any]:
    return slave.broker.replication.access()


async def test_a_promoted_slave_knows_the_users_that_its_master_was_given(tmp_path: Path) -> None:
    values = locked(tmp_path)
    with structlog.testing.capture_logs() as lines:
        async with AsyncExitStack() as slaves:
            async with running_master(tmp_path, **values) as master:
                await add_user(master, "early")
                slave = await slaves.enter_async_context(running_slave(tmp_path, master, **values))
                await until(lambda: rules_of(slave, "early"))
                await add_user(master)
                await until(lambda: rules_of(slave) == ["allow Topic:t Pub"])
                answer = await ask(master, "root", 3003, {"username": "early"})
                assert answer.code == 0
                await until(lambda: rules_of(slave, "early") is None)
                assert access(slave) == {"isCopied": True, "differs": ""}
            check_files(Path(slave.broker.guard.book.path))
            assert (await ask(slave, "root", PROMOTE)).code == 0
            await until(lambda: slave.is_ready and not slave.settings.is_slave)
            answer = await ask(slave, "late", 310, send_fields("t"), body=b"x", secret=SECRET)
            assert answer.code == 0, answer.remark
            answer = await ask(slave, "early", 310, send_fields("t"), body=b"x", secret=SECRET)
            assert answer.code == NO
            assert access(slave) == {}
    assert SECRET not in str(lines)


def check_files(file: Path) -> None:
    assert SECRET in file.read_text()
    for each in file.parent.glob("access.json*"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o600, each


async def test_what_is_changed_at_a_slave_is_the_masters_again(tmp_path: Path) -> None:
    values = locked(tmp_path)
    async with running_master(tmp_path, **values) as master:
        await add_user(master)
        async with running_slave(tmp_path, master, **values) as slave:
            await until(lambda: rules_of(slave))
            await add_user(slave, "stray")
            await until(lambda: rules_of(slave, "stray") is None)
            assert rules_of(slave)


async def test_a_slave_says_which_users_of_files_are_not_its_masters(tmp_path: Path) -> None:
    values = locked(tmp_path)
    users = USERS.replace("Topic:t Pub]}", "Topic:t All]}").replace("maker", "made")
    other = locked(tmp_path / "other") | {"acl_file": str(write_users(tmp_path / "other", users))}
    with structlog.testing.capture_logs() as lines:
        async with (
            running_master(tmp_path, **values) as master,
            running_slave(tmp_path, master, **other) as slave,
        ):
            await until(lambda: access(slave)["differs"])
            told = (
                "missing here: User:maker; not at the master: User:made; different here: User:pub"
            )
            assert access(slave) == {"isCopied": True, "differs": told}
            url = f"mq://root:a-secret-of-root@127.0.0.1:{master.namesrv_port}"
            rows = (await aerobee("replicas", "--json", url=url)).json
            assert rows[1]["note"] == told
            found = (await aerobee("doctor", "--json", url=url, code=1)).json
            [users_row] = [row for row in found if row["what"].endswith(": users")]
            assert users_row["verdict"] == "trouble" and told in users_row["finding"]
            write_users(tmp_path / "other", USERS)  # as an operator mends it
            slave.broker.guard.reload()
            await until(lambda: not access(slave)["differs"])
    assert any(line.get("reason") == told for line in lines)
    assert "a-secret-of" not in str(lines)


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_slave_tells_that_only_one_of_both_has_access_control(
    tmp_path: Path, is_on: bool
) -> None:
    off = {"inner_client_authentication_credentials": INNER}
    of_slave, of_master = (locked(tmp_path), off) if is_on else (off, locked(tmp_path))
    async with running_master(tmp_path, **of_master) as master:
        way = {"ha_master_address": f"127.0.0.1:{master.broker.addresses.ha_port}"}
        async with running_slave(tmp_path, master, **of_slave, **way) as slave:
            await until(lambda: access(slave)["differs"])
            told = "refuse clients" if is_on else "admit everyone"
            assert told in access(slave)["differs"]
            assert not access(slave)["isCopied"]


async def test_nobody_but_a_broker_is_given_the_users(tmp_path: Path) -> None:
    """Neither a super user nor a whitelisted client gets them; a broker gets them encrypted."""
    users = USERS + "globalWhiteRemoteAddresses: [127.0.0.1]\n"
    values = locked(tmp_path)
    async with running_master(tmp_path, **values) as master:
        await add_user(master)
        for user in ("root", "pub", ""):
            answer = await ask(master, user, GET_ACCESS, {"challenge": "c"})
            assert answer.code == NO and not answer.body, user
        answer = await ask(master, "inner", GET_ACCESS, {"challenge": "c"})
        assert answer.code == 0 and SECRET.encode() not in bytes(answer.body)
        group = group_of(master.broker.settings)
        opened = unseal(Sealing("a-secret-of-inner", group, "c"), bytes(answer.body))
        assert SECRET.encode() in opened
        known = {"challenge": "d", "known": version_of("a-secret-of-inner", opened)}
        same = await ask(master, "inner", GET_ACCESS, known)
        assert unseal(Sealing("a-secret-of-inner", group, "d"), bytes(same.body)) == NOTHING_NEW
        write_users(tmp_path, users)
        master.broker.guard.reload()
        for user in ("", "inner"):
            answer = await ask(master, user, GET_ACCESS, {"challenge": "c"}, secret="wrong")
            assert answer.code == NO and not answer.body, user


def test_a_seal_is_broken_by_any_change() -> None:
    text = b'{"accounts":[]}'
    right = Sealing("secret", "cluster/broker-a", "challenge")
    sealed = seal(right, text)
    assert unseal(right, sealed) == text
    assert text not in sealed
    wrong = [(right._replace(**{field: "other"}), sealed) for field in Sealing._fields]
    wrong += [(Sealing("secret", "cluster/broker-", "achallenge"), sealed)]
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        wrong.append((right, bytes(changed)))
    wrong += [(right, sealed[:end]) for end in range(len(sealed))]
    for case in wrong:
        with pytest.raises(ValueError, match="wrong seal"):
            unseal(*case)
    assert seal(right, text) != sealed


@pytest.mark.parametrize(
    "body",
    [b"", seal(Sealing("a-secret-of-inner", GROUP, "an older one"), NOTHING_NEW)],
    ids=["empty", "of-an-older-question"],
)
async def test_nobody_on_the_way_can_say_that_nothing_has_changed(
    tmp_path: Path, body: bytes
) -> None:
    """Answers are not signed: an empty one, or that of another time, would keep a removed user."""
    async with (
        running_master(tmp_path, **locked(tmp_path)) as master,
        running_slave(tmp_path, master, **locked(tmp_path)) as slave,
    ):
        await until(lambda: access(slave)["isCopied"])
        sync = AccessSync(slave.broker.settings, slave.broker.guard)
        facts = SimpleNamespace(has_users=True, is_ours=True)
        await sync.step(Forged(body), facts, lambda: True)  # type: ignore[arg-type]
        assert "wrong seal" in sync.differs and not sync.is_copied


async def test_a_replica_does_not_take_the_users_of_another_group(tmp_path: Path) -> None:
    """Both groups share the inner secret, and a man in the middle asks the other group's master."""
    values = locked(tmp_path)
    async with (
        running_master(tmp_path, "ours", broker_name="ours", **values) as ours,
        running_master(tmp_path, "theirs", broker_name="theirs", **values) as theirs,
    ):
        await add_user(theirs)
        facts = SimpleNamespace(has_users=True, is_ours=True)
        sync = AccessSync(ours.broker.settings, ours.broker.guard)
        await sync.step(Crossed(theirs), facts, lambda: True)  # type: ignore[arg-type]
        assert "wrong seal" in sync.differs and not sync.is_copied
        assert rules_of(ours) is None
        await add_user(ours, "own")
        await sync.step(Crossed(ours), facts, lambda: True)  # type: ignore[arg-type]
        assert sync.is_copied and not sync.differs


class Crossed:
    """Requests to a master, which may be another one than the replica believes."""

    def __init__(self, master: AppBroker) -> None:
        self._master = master

    async def ask(self, code: int, fields: dict[str, str]) -> Any:
        return await ask(self._master, "inner", code, fields)


class Forged:
    """A master whose answers a man in the middle has replaced."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def ask(self, code: int, fields: dict[str, str]) -> Command:
        return Command(0, {"version": fields["known"]}, self._body)


async def test_the_command_changes_the_master_and_a_slave_gets_it(tmp_path: Path) -> None:
    values = locked(tmp_path)
    async with (
        running_master(tmp_path, **values) as master,
        running_slave(tmp_path, master, **values) as slave,
    ):
        await until(lambda: access(slave)["isCopied"])
        url = f"mq://root:a-secret-of-root@127.0.0.1:{master.namesrv_port}"
        await aerobee("user", "add", "late", "--json", url=url)
        await aerobee("acl", "grant", "late", "Pub", "Topic:t", url=url)
        await until(lambda: rules_of(slave) == ["allow Topic:t Pub"])
        assert rules_of(master) == ["allow Topic:t Pub"]
