"""`aerobee user` and `aerobee acl`: by wire, or in a broker's files with --config or --store."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

import click

from aerobee.broker.auth import edits
from aerobee.broker.auth.model import (
    ACTIONS,
    KINDS,
    AccessError,
    Resource,
    make_rule,
)
from aerobee.broker.auth.verdicts import judge
from aerobee.broker.settings import SettingsError
from aerobee.client.cli.common import CommonOptions, run_loop
from aerobee.client.cli.failures import NOT_FOUND, WRONG_USAGE, Failure, confirmed
from aerobee.client.cli.output import print_done, print_json, print_rows
from aerobee.client.cli.user_places import Files, PartlyChanged, Place, Wire
from aerobee.client.client import Client


def _placed(command: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a coroutine `(common, place, ...)` a command body."""

    @click.option("-u", "--url", envvar="AEROBEE_URL", help="Name servers: mq://host:port[,...].")
    @click.option("--timeout", type=float, default=5.0, show_default=True)
    @click.option("--config", help="Work in the files of the broker with this settings file.")
    @click.option("--store", help="Work in the files of the broker with this store folder.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def run(
        url: str | None,
        timeout: float,
        config: str | None,
        store: str | None,
        as_json: bool,
        **options: Any,
    ) -> None:
        common = CommonOptions(url, timeout, as_json)

        async def live() -> None:
            if config or store:
                await command(common, await asyncio.to_thread(Files, config, store), **options)
                return
            client = Client(url, timeout=timeout)
            try:
                await command(common, Wire(await client.open()), **options)
            finally:
                await client.close()

        try:
            run_loop(live())
        except (AccessError, SettingsError) as error:
            raise Failure(str(error)) from None

    return run


@click.group()
def user() -> None:
    """Add, list, change and remove users."""


@user.command()
@click.argument("name")
@click.option("--super", "is_super", is_flag=True, help="May do everything.")
@_placed
async def add(common: CommonOptions, place: Place, name: str, is_super: bool) -> None:
    """Add a user; its secret key is made here and shown once."""
    secret = edits.new_secret()
    try:
        await place.add(name, secret, is_super)
    except PartlyChanged as partly:
        raise partly.advised(
            f"When all brokers answer, remove it from those that have it by `aerobee user remove "
            f"{name}`, and add it again: its secret is not shown"
        ) from None
    _show_secret(common, name, secret)


@user.command()
@click.argument("name")
@click.option(
    "--secret-from",
    type=click.File(),
    metavar="FILE",
    help="Give the secret in FILE (-: stdin), to finish a rotation that some brokers missed.",
)
@_placed
async def rotate(
    common: CommonOptions, place: Place, name: str, secret_from: TextIO | None
) -> None:
    """Give a new secret key, shown once; the old one stays valid for 24 hours."""
    secret = edits.new_secret() if secret_from is None else secret_from.read().strip()
    if not secret:
        raise Failure("--secret-from: there is no secret in it", WRONG_USAGE)
    try:
        await place.rotate(name, secret)
    except PartlyChanged as partly:
        _show_secret(common, name, secret)
        raise partly.advised(
            "Brokers that have the new secret take the old one for 24 hours more; the others know "
            "only the old one. So let clients keep the old one, and within these 24 hours run "
            f"`aerobee user rotate {name} --secret-from FILE` with this new secret in FILE. "
            "Yet another secret would end the old one at once where this rotation is done"
        ) from None
    _show_secret(common, name, secret)


def _show_secret(common: CommonOptions, name: str, secret: str) -> None:
    if common.json:
        print_json({"access_key": name, "secret_key": secret})
        return
    click.echo(f"accessKey={name}\nsecretKey={secret}")
    click.echo("keep the secret: it is not shown again", err=True)


@user.command("list")
@_placed
async def list_users(common: CommonOptions, place: Place) -> None:
    """All users, without their secrets."""
    rows = [
        {
            "user": each.name,
            "type": "Super" if each.is_super else "Normal",
            "status": "enable" if each.is_enabled else "disable",
            "from": each.origin,
        }
        for each in await place.users()
    ]
    print_rows(rows, as_json=common.json, empty="no users")


@user.command()
@click.argument("name")
@confirmed("Remove user {name} with all rights?")
@_placed
async def remove(common: CommonOptions, place: Place, name: str) -> None:
    """Remove a user and its rights."""
    await place.remove(name)
    print_done(f"user {name} is removed", {"user": name}, as_json=common.json)


@user.command()
@click.argument("name")
@_placed
async def disable(common: CommonOptions, place: Place, name: str) -> None:
    """Disable a user without removing it."""
    await place.switch(name, False)
    print_done(f"user {name} is disabled", {"user": name}, as_json=common.json)


@user.command()
@click.argument("name")
@_placed
async def enable(common: CommonOptions, place: Place, name: str) -> None:
    """Enable a disabled user."""
    await place.switch(name, True)
    print_done(f"user {name} is enabled", {"user": name}, as_json=common.json)


@click.group()
def acl() -> None:
    """Grant, revoke, show and test the rights of users."""


@acl.command()
@click.argument("name")
@click.argument("actions", metavar="ACTION[,ACTION...]")
@click.argument("resource")
@click.option("--deny", is_flag=True, help="Deny instead of allowing.")
@click.option("--from", "networks", default="", metavar="IP[,NETWORK...]", help="Only from there.")
@_placed
async def grant(
    common: CommonOptions,
    place: Place,
    name: str,
    actions: str,
    resource: str,
    deny: bool,
    networks: str,
) -> None:
    """Allow a user actions (Pub, Sub, Create, Update, Delete, Get, List, All) on Topic:NAME,
    Group:NAME, Cluster:NAME, a prefix of one with * behind it, or *."""
    rule = make_rule(not deny, resource, actions.split(","), networks.split(","))
    await place.grant(name, rule)
    print_done(f"{name}: {rule}", {"user": name, "policy": str(rule)}, as_json=common.json)


@acl.command()
@click.argument("name")
@click.argument("resource", default="")
@_placed
async def revoke(common: CommonOptions, place: Place, name: str, resource: str) -> None:
    """Revoke a user's rights to a resource, or all of them."""
    await place.revoke(name, resource)
    value = {"user": name, "resource": resource}
    text = f"{name}: the rights to {resource or 'everything'} are revoked"
    print_done(text, value, as_json=common.json)


@acl.command()
@click.argument("name", default="")
@_placed
async def show(common: CommonOptions, place: Place, name: str) -> None:
    """The rights of a user, or of all."""
    rows = [
        {"user": each.name, "policy": text, "from": origin}
        for each in await place.users()
        if name in ("", each.name)
        for text, origin in (
            ("super user: everything", each.origin) if each.is_super else (None, None),
            *((str(rule), rule.origin) for rule in each.rules),
        )
        if text is not None
    ]
    print_rows(rows, as_json=common.json, empty="no rights")


@acl.command()
@click.argument("name")
@click.argument("action", type=click.Choice(ACTIONS, case_sensitive=False))
@click.argument("resource")
@click.option("--from", "address", default="127.0.0.1", help="The address that the user has.")
@_placed
async def test(
    common: CommonOptions, place: Place, name: str, action: str, resource: str, address: str
) -> None:
    """Say whether a user may do something, and which policy decides; exit code 1 when not."""
    kind, colon, what = resource.partition(":")
    if not colon or kind not in KINDS:
        raise AccessError(f"write {resource!r} as {', '.join(f'{each}:NAME' for each in KINDS)}")
    found = {each.name: each for each in await place.users()}.get(name)
    if found is None:
        raise Failure(f"User:{name} is not found", NOT_FOUND)
    verdict = judge(found, frozenset({action}), Resource(kind, what), address)
    allowed = verdict.allowed and found.is_enabled
    reason = verdict.reason if found.is_enabled else "the user is disabled"
    value = {"allowed": allowed, "reason": reason, "from": verdict.origin}
    if common.json:
        print_json(value)
    else:
        origin = f" ({verdict.origin})" if verdict.origin else ""
        click.echo(f"{'allowed' if allowed else 'denied'}: {reason}{origin}")
    if not allowed:
        raise click.exceptions.Exit(1)
