"""Administration of consumer groups: create, change, delete, list, forbid."""

from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from aerobee.broker.base import resource_names
from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.admin.topics import page
from aerobee.broker.handlers.common import (
    Handlers,
    answer_when_saved,
    check_can_be_saved,
    known_group,
    peer,
    put_listed,
    read_body,
    success,
)
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Request
from aerobee.broker.services.groups.config import GroupConfig, group_from_json
from aerobee.protocol.wire.admin_headers import DeleteGroup, GroupForbidden, GroupHeader, GroupPage
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import decode_ext

log = structlog.get_logger("aerobee.admin")


def update_and_create_group(broker: Broker, request: Request) -> Command | None:
    """Create a group or change it."""
    broker.groups.put(_checked(broker, read_body(request)))
    return answer_when_saved(request, success(request), broker.groups.file)


def update_and_create_group_list(broker: Broker, request: Request) -> None:
    """Create or change several groups, all or none."""
    groups = broker.groups
    put_listed(request, "group", partial(_checked, broker), groups.put, groups.file)


def _fits(number: int) -> bool:
    return -(2**31) <= number < 2**31  # RocketMQ's fields have 32 bits


def _checked(broker: Broker, entry: dict[Any, Any]) -> GroupConfig:
    config = group_from_json(entry)
    problem = resource_names.group_problem(config.name)
    if problem is None and (large := [n for n in config.numbers if not _fits(n)]):
        problem = f"{large[0]} in the configuration of {config.name} does not fit its field"
    if problem is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, problem)
    known = broker.groups.find(config.name)
    attributes = dict(known.attributes) if known else {}
    for name, value in config.attributes.items():  # +name sets, -name removes
        if name.startswith("-"):
            attributes.pop(name[1:], None)
        else:
            attributes[name.removeprefix("+")] = value
    config = replace(config, attributes=attributes)
    check_can_be_saved(f"group {config.name}", config.to_json())
    return config


def get_all_groups(broker: Broker, request: Request) -> Command:
    """The whole table, or since 5.3 a page of it in the order of names."""
    header = decode_ext(request.command.ext, GroupPage)
    table = broker.groups.all()
    names = page(
        sorted(table),
        header.group_seq,
        header.max_group_num,
        header.data_version,
        broker.groups.data_version,
    )
    content = broker.groups.table_json()
    content["subscriptionGroupTable"] = {name: table[name].to_json() for name in names}
    return success(request, content, {"totalGroupNum": str(len(table))})


def get_group(broker: Broker, request: Request) -> Command:
    """One group; if it does not exist yet, with the settings that its first use would give it."""
    name = decode_ext(request.command.ext, GroupHeader).group
    config = broker.groups.find(name)
    if config is None:
        may_come = broker.settings.auto_create_subscription_group
        may_come = may_come and resource_names.group_problem(name) is None
        config = GroupConfig(name) if may_come else known_group(broker, name)
    return success(request, config.to_json())


def delete_group(broker: Broker, request: Request) -> Command | None:
    """Delete a group and, if requested, its offsets."""
    header = decode_ext(request.command.ext, DeleteGroup)
    broker.groups.delete(header.group_name)
    broker.stats.delete_group(header.group_name)
    if header.clean_offset or header.remove_offset:
        broker.offsets.delete_group(header.group_name)
    log.info("group deleted by an operator", group=header.group_name, peer=peer(request))
    files = [broker.groups.file]
    if header.clean_offset or header.remove_offset:
        files.append(broker.offsets.file)
    return answer_when_saved(request, success(request), *files)


def update_and_get_forbidden(broker: Broker, request: Request) -> Command | None:
    """Allow or forbid a group to read a topic; answers with the resulting state."""
    header = decode_ext(request.command.ext, GroupForbidden)
    files = []
    if header.readable is not None:
        broker.groups.get(header.group) or known_group(broker, header.group)
        if problem := resource_names.topic_problem(header.topic):
            raise Refused(ResponseCode.INVALID_PARAMETER, problem)
        broker.groups.set_forbidden(header.group, header.topic, not header.readable)
        files.append(broker.groups.file)
    readable = not broker.groups.is_forbidden(header.group, header.topic)
    answer = success(request, {"group": header.group, "readable": readable, "topic": header.topic})
    return answer_when_saved(request, answer, *files)


HANDLERS: Handlers = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_and_create_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_and_create_group_list,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: get_all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: update_and_get_forbidden,
}
