"""Users, rules, files and white addresses: what is read from them, and who may do what."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from access.guarded import write_users
from aerobee.broker.auth.accounts import make_user
from aerobee.broker.auth.book import AccessBook
from aerobee.broker.auth.guard import Guard
from aerobee.broker.auth.model import (
    AccessError,
    Resource,
    User,
    decide,
    make_rule,
    parse_rule,
)
from aerobee.broker.auth.white_addresses import white_addresses
from aerobee.broker.base.clock import Clock, VirtualClock
from aerobee.broker.settings import Settings
from aerobee.broker.store.files.real_disk import RealDisk

# As Apache ships it, with comments and a number for a secret.
PLAIN = """
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB
  - groupC=SUB

- accessKey: rocketmq2
  secretKey: "0123"
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""


def book_of(folder: Path, **settings: Any) -> AccessBook:
    values: dict[str, Any] = {"acl_enable": True, "folder": str(folder)} | settings
    return AccessBook(Settings(**values), str(folder / "config/access.json"), Clock())


def may(user: User, action: str, resource: str, address: str = "10.0.0.1") -> bool:
    kind, _, name = resource.partition(":")
    return decide(user, {action}, Resource(kind, name), address).allowed


def test_apaches_file_is_read_as_it_is(tmp_path: Path) -> None:
    write_users(tmp_path, PLAIN, "plain_acl.yml")
    book = book_of(tmp_path)
    book.load()
    user, admin = book.current.users["RocketMQ"], book.current.users["rocketmq2"]
    assert user.secrets == ("12345678",) and admin.secrets == ("0123",)
    assert book.current.is_white("10.10.103.77") and not book.current.is_white("10.10.104.77")
    assert admin.is_white("192.168.1.9") and not user.is_white("192.168.1.9")
    allowed = {
        (action, resource)
        for action in ("Pub", "Sub")
        for resource in (
            *("Topic:topicA", "Topic:topicB", "Topic:topicC", "Topic:other"),
            *("Group:groupA", "Group:groupB", "Group:groupC", "Group:other"),
        )
        if may(user, action, resource)
    }
    assert allowed == {
        ("Pub", "Topic:topicB"),
        ("Sub", "Topic:topicB"),
        ("Sub", "Topic:topicC"),
        ("Pub", "Group:groupB"),
        ("Sub", "Group:groupB"),
        ("Sub", "Group:groupC"),
        ("Sub", "Group:other"),
    }
    assert may(admin, "Delete", "Topic:topicA") and may(admin, "Update", "Cluster:c")


def test_the_lists_of_an_admin_bind_what_it_sends_and_reads_only() -> None:
    account = {"accessKey": "a", "secretKey": "s", "admin": "true", "topicPerms": ["t=SUB"]}
    admin = make_user(account, "f", 0)
    assert not may(admin, "Pub", "Topic:t") and may(admin, "Sub", "Topic:t")
    assert may(admin, "Update", "Cluster:c")


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], False),
        (["allow Topic:t Pub"], True),
        (["allow Topic:t Sub"], False),
        (["allow Topic:t Pub from 10.0.0.0/8"], True),
        (["allow Topic:t Pub from 11.0.0.0/8"], False),
        (["allow * All"], True),
        (["allow * All", "deny Topic:* Pub"], False),
        (["deny Topic:* Pub", "allow Topic:t Pub"], True),
        (["allow Topic:t Pub", "deny Topic:t All"], False),
        (["deny Topic:t* Pub", "allow Topic:tt* Pub"], False),
        (["default allow Topic:t Pub", "deny Topic:* Pub"], False),
        (["default allow Topic:t Pub", "deny Topic:* Sub"], True),
        (["allow Group:t Pub"], False),
    ],
)
def test_the_most_exact_rule_decides(rules: list[str], allowed: bool) -> None:
    user = User("u", rules=tuple(parse_rule(text) for text in rules))
    assert may(user, "Pub", "Topic:t") is allowed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "allow",
        "allow Topic:t",
        "permit Topic:t Pub",
        "allow Topic:t Read",
        "allow Queue:t Pub",
        "allow Topic:a*b Pub",
        "allow Topic:t Pub from",
        "allow Topic:t Pub from nowhere",
        "allow Topic:t Pub 10.0.0.1",
    ],
)
def test_a_rule_that_is_not_understood_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(AccessError, match=r"not understood|no action|not an address"):
        parse_rule(text)


def test_a_rule_is_written_as_it_is_read() -> None:
    for text in ("default deny Topic:t* Pub,Sub from 10.0.0.0/8", "allow * All"):
        assert str(parse_rule(text)) == text
    assert str(make_rule(True, "topic:t", ["pub"])) == "allow Topic:t Pub"


@pytest.mark.parametrize(
    ("white", "yes", "no"),
    [
        ("*", ["1.2.3.4", "2001:db8::1"], []),
        ("1.2.3.4", ["1.2.3.4"], ["1.2.3.5", "::1"]),
        ("1.2.*.*", ["1.2.0.255"], ["1.3.0.0"]),
        ("1.2.3.1-9", ["1.2.3.1", "1.2.3.9"], ["1.2.3.10"]),
        ("1.2.3.{4,5}", ["1.2.3.4", "1.2.3.5"], ["1.2.3.6"]),
        ("1.2.3.4, 1.2.3.{6,7}", ["1.2.3.4", "1.2.3.7"], ["1.2.3.5"]),
        ("10.0.0.0/8", ["10.9.9.9"], ["11.0.0.0"]),
        ("2001:db8::1-f", ["2001:db8::a"], ["2001:db8::10", "1.2.3.4"]),
        ("2001:db8:*:*:*:*:*:{1,2}", ["2001:db8:1::2"], ["2001:db9::2"]),
        ("", [], ["1.2.3.4"]),
    ],
)
def test_white_addresses_are_read_as_apache_reads_them(
    white: str, yes: list[str], no: list[str]
) -> None:
    is_white = white_addresses(white)
    assert [is_white(each) for each in yes + no] == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize(
    "text",
    [
        *("1.2.3", "1.2.3.x", "host", "1.2.3.4-", "::1::2"),
        *("1.2.3.a", "1.2.3.4-f", "1.2.3.{4,f}", "1.2.3." + "4" * 5000),
    ],
)
def test_a_white_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(AccessError, match="white address"):
        white_addresses(text)


def test_an_account_in_two_files_counts_as_the_first_says(tmp_path: Path) -> None:
    account = "accounts: [{{accessKey: a, secretKey: {}}}]"
    write_users(tmp_path, account.format("first"), "access.yml")
    write_users(tmp_path, account.format("second"), "acl/deep/more.yml")
    write_users(tmp_path, "accounts: [{accessKey: b, secretKey: other}]", "acl/b.yaml")
    book = book_of(tmp_path)
    book.load()
    assert book.current.users["a"].secrets == ("first",)
    assert set(book.current.users) == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("accounts: [{accessKey: a}]", "access.yml:1: the account a has no secretKey"),
        ("accounts: [{secretKey: hush-hush}]", "no accessKey"),
        ("accounts: [{accessKey: a, secretKey: hush-hush, sort: x}]", "unknown field sort"),
        ("accounts:\n- &x {accessKey: a, secretKey: hush-hush}\n- *x", "access.yml:3.*aliases"),
        ("accounts: {", "access.yml:1 cannot be read"),
        ("accounts: a", "must be a list"),
        ("- a", "no `accounts:`"),
        ("accounts: [{accessKey: a, secretKey: hush-hush, policies: [allow x]}]", "understood"),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_shows_no_secret(
    tmp_path: Path, text: str, says: str
) -> None:
    write_users(tmp_path, text)
    with pytest.raises(AccessError, match=says) as caught:
        book_of(tmp_path).load()
    assert "hush" not in str(caught.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    write_users(tmp_path, PLAIN).chmod(0o644)
    with pytest.raises(AccessError, match="chmod 600"):
        book_of(tmp_path).load()


def test_a_secret_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    write_users(tmp_path, "from-systemd\n", "credential")
    write_users(tmp_path, "accounts: [{accessKey: a, secretFile: credential}]")
    book = book_of(tmp_path)
    book.load()
    assert book.current.users["a"].secrets == ("from-systemd",)


async def test_the_old_secret_of_a_user_in_a_file_ends_at_its_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    old = f"oldSecretKey: old, oldSecretUntil: {clock.now_ms() + 60_000}"
    write_users(tmp_path, f"accounts: [{{accessKey: a, secretKey: new, {old}}}]")
    settings = Settings(acl_enable=True, folder=str(tmp_path))
    book = AccessBook(settings, str(tmp_path / "config/access.json"), clock)
    book.load()
    watching = asyncio.create_task(book.watch())
    await clock.advance(30)
    secrets = [book.current.users["a"].secrets]
    await clock.advance(60)
    secrets.append(book.current.users["a"].secrets)
    assert secrets == [("new", "old"), ("new",)]
    watching.cancel()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("access.yml", "accounts: {"),
        ("access.yml", "globalWhiteRemoteAddresses: [10.0.0.a]"),
        ("config/access.json", '{"accounts": {"accessKey": "a"}}'),
        ("config/access.json", '{"accounts": ["a"]}'),
        ("config/access.json", '{"globalWhiteRemoteAddresses": [1]}'),
    ],
)
def test_a_file_that_became_bad_leaves_the_users_before(
    tmp_path: Path, name: str, text: str
) -> None:
    write_users(tmp_path, PLAIN)
    book = book_of(tmp_path)
    book.load()
    generation = book.generation
    write_users(tmp_path, text, name)
    book.reload()
    assert book.generation == generation and "RocketMQ" in book.current.users


async def test_a_change_is_saved_for_its_owner_only_and_outlives_a_restart(
    tmp_path: Path,
) -> None:
    write_users(tmp_path, PLAIN)
    book = book_of(tmp_path)
    book.load()
    new = {"accessKey": "new", "secretKey": "hush"}
    await book.change(lambda accounts, white: accounts.update(new=new))
    again = book_of(tmp_path)
    again.load()
    assert again.current.users["new"].secrets == ("hush",)
    assert os.stat(book.path).st_mode & 0o777 == 0o600
    with pytest.raises(AccessError, match="is defined in"):
        await book.change(lambda accounts, white: accounts.update(RocketMQ=new))


async def test_a_file_that_is_edited_while_a_change_is_saved_is_read_again(tmp_path: Path) -> None:
    class EditedMeanwhile(RealDisk):
        def write_small(self, path: str, data: bytes, mode: int = 0o644) -> None:
            write_users(tmp_path, PLAIN.replace("accessKey: RocketMQ", "accessKey: Another"))
            super().write_small(path, data, mode)

    write_users(tmp_path, PLAIN)
    clock = VirtualClock()
    settings = Settings(acl_enable=True, folder=str(tmp_path))
    book = AccessBook(settings, str(tmp_path / "config/access.json"), clock, EditedMeanwhile())
    book.load()
    new = {"accessKey": "new", "secretKey": "hush"}
    await book.change(lambda accounts, white: accounts.update(new=new))
    watching = asyncio.create_task(book.watch())
    await clock.advance(10)
    watching.cancel()
    assert book.current.users.keys() == {"Another", "rocketmq2", "new"}


def test_what_would_be_open_to_everybody_does_not_start(tmp_path: Path) -> None:
    def refusal(**settings: Any) -> str:
        values: dict[str, Any] = {"folder": str(tmp_path)} | settings
        book = AccessBook(Settings(**values), str(tmp_path / "access.json"), VirtualClock())
        with pytest.raises(AccessError) as caught:
            Guard(Settings(**values), book, VirtualClock()).load()
        return str(caught.value)

    assert "authenticationEnabled" in refusal(authorization_enabled=True)
    assert "there is no user" in refusal(acl_enable=True)
    write_users(tmp_path, PLAIN)
    assert "everybody knows" in refusal(acl_enable=True, bind_address="0.0.0.0")


def test_users_of_the_settings_are_super_users(tmp_path: Path) -> None:
    book = book_of(
        tmp_path,
        init_authentication_user='{"username":"first","password":"p"}',
        inner_client_authentication_credentials='{"accessKey":"inner","secretKey":"s"}',
    )
    book.load()
    assert all(book.current.users[name].is_super for name in ("first", "inner"))
    assert "p" not in repr(book.current.users["first"]).split()
