"""Users and their rights over the wire: mqadmin's commands of RocketMQ 4 (50-53) and 5 (3001-3010).

Changes go to config/access.json; users in the operator's files are shown and not changed. No answer
holds a secret.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from aerobee.broker.auth import edits
from aerobee.broker.auth.book import AccessBook
from aerobee.broker.auth.edits import Accounts
from aerobee.broker.auth.model import AccessError, Rule, User, make_rule
from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import Handlers, read_body, reply_later, success
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.addresses import join
from aerobee.broker.net.requests import Request
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

Edit = Callable[[Accounts, list[str]], None]

ENTRIES_MAX: Final = 1000  # of one request
_FAILED: Final = {  # the code that mqadmin of 4.9 expects; others get SYSTEM_ERROR
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: 209,
    RequestCode.DELETE_ACL_CONFIG: 210,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: 211,
}
_SUBJECT: Final = "User:"
_DEFAULT: Final = "Default"


def _book(broker: Broker) -> AccessBook:
    if not broker.guard.is_on:
        raise Refused(
            ResponseCode.ILLEGAL_OPERATION,
            "The broker does not enable acl: set aclEnable=true and restart it",
        )
    return broker.guard.book


def _change(broker: Broker, request: Request, name: str, edit: Edit) -> None:
    """Make the change, and answer once it is on disk and in force."""
    book = _book(broker)
    failed = _FAILED.get(RequestCode(request.command.code), ResponseCode.SYSTEM_ERROR)

    async def answer() -> Command:
        try:
            if name and (place := book.is_in_file(name)):
                raise AccessError(f"User:{name} is defined in {place}: change it there")
            await book.change(edit)
        except AccessError as error:
            return request.command.answer(failed, remark=str(error))
        except OSError as error:
            return request.command.answer(failed, remark=f"{book.path} cannot be saved: {error}")
        return success(request)

    reply_later(request, answer)


# --- RocketMQ 4


def update_acl_config(broker: Broker, request: Request) -> None:
    fields = {k: v for k, v in request.command.ext.items() if k in edits.PLAIN_FIELDS}
    name = _field(request, "accessKey")

    def edit(accounts: Accounts, _white: list[str]) -> None:
        edits.put_plain_account(accounts, name, fields)

    _change(broker, request, name, edit)


def delete_acl_config(broker: Broker, request: Request) -> None:
    name = _field(request, "accessKey")
    _change(broker, request, name, lambda accounts, _white: edits.remove_user(accounts, name))


def update_white_addresses(broker: Broker, request: Request) -> None:
    """The list is replaced; the path of a file that the request may name is ignored."""
    addresses = _field(request, "globalWhiteAddrs")

    def edit(_accounts: Accounts, white: list[str]) -> None:
        white[:] = [part.strip() for part in addresses.split(",") if part.strip()]

    _change(broker, request, "", edit)


def acl_version(broker: Broker, request: Request) -> Command:
    book = _book(broker)
    version = {"counter": book.generation, "stateVersion": 0, "timestamp": book.changed_at_ms}
    text = fastjson.dumps(version).decode()
    connection = request.connection
    address = broker.addresses.route_address(connection.peer, connection.local)
    return success(
        request,
        ext={
            "allAclFileVersion": fastjson.dumps({book.path: version}).decode(),
            "brokerAddr": address or join(*connection.local),
            "brokerName": broker.settings.broker_name,
            "clusterName": broker.settings.broker_cluster_name,
            "version": text,
        },
    )


# --- RocketMQ 5: users


def create_user(broker: Broker, request: Request) -> None:
    name, body = _field(request, "username"), read_body(request)
    secret, is_super = str(body.get("password") or ""), _is_super(body)

    def edit(accounts: Accounts, _white: list[str]) -> None:
        edits.add_user(accounts, name, secret, is_super=bool(is_super))
        edits.change_user(accounts, name, is_enabled=_is_enabled(body))

    _change(broker, request, name, edit)


def update_user(broker: Broker, request: Request) -> None:
    """`keepOld` is ours: the old password stays valid for a while, so that clients can follow."""
    name, body = _field(request, "username"), read_body(request)
    secret = str(body.get("password") or "")

    def edit(accounts: Accounts, _white: list[str]) -> None:
        if secret and body.get("keepOld") is True:
            edits.rotate_secret(accounts, name, secret, broker.clock.now_ms())
        edits.change_user(
            accounts,
            name,
            secret=secret,
            is_super=_is_super(body),
            is_enabled=_is_enabled(body),
        )

    _change(broker, request, name, edit)


def delete_user(broker: Broker, request: Request) -> None:
    name = _field(request, "username")
    _change(broker, request, name, lambda accounts, _white: edits.remove_user(accounts, name))


def get_user(broker: Broker, request: Request) -> Command:
    user = _book(broker).current.users.get(_field(request, "username"))
    return success(request, None if user is None else _shown(user))


def list_users(broker: Broker, request: Request) -> Command:
    wanted = request.command.ext.get("filter", "")
    users = _book(broker).current.users
    return success(request, [_shown(users[name]) for name in sorted(users) if wanted in name])


def _shown(user: User) -> dict[str, str]:
    """Without the password: copyUser would copy it."""
    return {
        "userStatus": "enable" if user.is_enabled else "disable",
        "userType": "Super" if user.is_super else "Normal",
        "username": user.name,
    }


def _is_super(body: dict[Any, Any]) -> bool | None:
    return _one_of(body, "userType", {"super": True, "normal": False})


def _is_enabled(body: dict[Any, Any]) -> bool | None:
    return _one_of(body, "userStatus", {"enable": True, "disable": False})


def _one_of(body: dict[Any, Any], key: str, values: dict[str, bool]) -> bool | None:
    text = str(body.get(key) or "").lower()
    if text and text not in values:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{key} is one of {', '.join(values)}")
    return values.get(text)


# --- RocketMQ 5: rights


def put_acl(broker: Broker, request: Request) -> None:
    """createAcl and updateAcl: policies are added, those of the same resource replaced."""
    name, rules = _subject(request), _rules(read_body(request))

    def edit(accounts: Accounts, _white: list[str]) -> None:
        edits.grant(accounts, name, *rules)

    _change(broker, request, name, edit)


def delete_acl(broker: Broker, request: Request) -> None:
    ext, name = request.command.ext, _subject(request)
    kind = ext.get("policyType", "")
    default = None if not kind else kind == _DEFAULT

    def edit(accounts: Accounts, _white: list[str]) -> None:
        edits.revoke(accounts, name, ext.get("resource", ""), default)

    _change(broker, request, name, edit)


def get_acl(broker: Broker, request: Request) -> Command:
    user = _book(broker).current.users.get(_subject(request))
    return success(request, _acl(user, user.rules) if user is not None and user.rules else None)


def list_acls(broker: Broker, request: Request) -> Command:
    ext, users = request.command.ext, _book(broker).current.users
    subject, resource = ext.get("subjectFilter", ""), ext.get("resourceFilter", "")
    found = []
    for name in sorted(users):
        rules = [rule for rule in users[name].rules if resource in rule.resource]
        if subject in _SUBJECT + name and rules:
            found.append(_acl(users[name], rules))
    return success(request, found)


def _acl(user: User, rules: Iterable[Rule]) -> dict[str, Any]:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for rule in rules:
        kinds.setdefault(_DEFAULT if rule.default else "Custom", []).append(
            {
                "actions": rule.action_names,
                "decision": "Allow" if rule.allow else "Deny",
                "resource": rule.resource,
                "sourceIps": [str(network) for network in rule.networks],
            }
        )
    policies = [{"entries": entries, "policyType": kind} for kind, entries in kinds.items()]
    return {"policies": policies, "subject": _SUBJECT + user.name}


def _rules(body: dict[Any, Any]) -> list[Rule]:
    policies = body.get("policies")
    rules: list[Rule] = []
    try:
        for policy in policies if isinstance(policies, list) else ():
            for entry in policy["entries"][:ENTRIES_MAX]:
                rules.append(
                    make_rule(
                        str(entry["decision"]).lower() == "allow",
                        str(entry["resource"]),
                        [str(action) for action in entry["actions"]],
                        [str(network) for network in entry.get("sourceIps") or ()],
                        default=policy.get("policyType") == _DEFAULT,
                    )
                )
    except (LookupError, TypeError, AttributeError):
        raise Refused(ResponseCode.INVALID_PARAMETER, "the policies cannot be read") from None
    except AccessError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from None
    if not rules:
        raise Refused(ResponseCode.INVALID_PARAMETER, "the request has no policies")
    return rules


def _subject(request: Request) -> str:
    return _field(request, "subject").removeprefix(_SUBJECT)


def _field(request: Request, name: str) -> str:
    value = request.command.ext.get(name, "")
    if not value:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the request has no {name}")
    return value


HANDLERS: Handlers = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: update_acl_config,
    RequestCode.DELETE_ACL_CONFIG: delete_acl_config,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: acl_version,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: update_white_addresses,
    RequestCode.AUTH_CREATE_USER: create_user,
    RequestCode.AUTH_UPDATE_USER: update_user,
    RequestCode.AUTH_DELETE_USER: delete_user,
    RequestCode.AUTH_GET_USER: get_user,
    RequestCode.AUTH_LIST_USER: list_users,
    RequestCode.AUTH_CREATE_ACL: put_acl,
    RequestCode.AUTH_UPDATE_ACL: put_acl,
    RequestCode.AUTH_DELETE_ACL: delete_acl,
    RequestCode.AUTH_GET_ACL: get_acl,
    RequestCode.AUTH_LIST_ACL: list_acls,
}
