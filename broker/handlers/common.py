"""What the handlers of coordination, queries and administration share."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from aerobee.broker.base import resource_names
from aerobee.broker.base.refused import Refused
from aerobee.broker.base.turns import InOrder
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Handler, Request, failed
from aerobee.broker.services.config_files.table_file import TableFile
from aerobee.broker.services.groups.config import GroupConfig
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import Command

Owner = TypeVar("Owner")
Config = TypeVar("Config")
Handlers = Mapping[int, Callable[[Broker, Request], Command | None]]

_AROUND: Final = 50  # levels around a configuration, at most, wherever it is written

_tasks: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly


def bound(
    owner: Owner, table: Mapping[int, Callable[[Owner, Request], Command | None]]
) -> dict[int, Handler]:
    """The functions of `table` as handlers: each is given its owner, mostly the broker."""
    return {int(code): partial(handler, owner) for code, handler in table.items()}


def success(
    request: Request,
    value: Any = None,
    ext: dict[str, str] | None = None,
    remark: str | None = None,
) -> Command:
    """SUCCESS, with `value` as the JSON body unless it is None."""
    body = b"" if value is None else fastjson.dumps(value)
    return request.command.answer(ResponseCode.SUCCESS, ext, body, remark)


def read_body(request: Request) -> dict[Any, Any]:
    """The request's body as a JSON object; Refused when it is none."""
    value = fastjson.loads_request(request.command.body) if request.command.body else None
    if not isinstance(value, dict):
        raise Refused(ResponseCode.INVALID_PARAMETER, "the request's body is not a JSON object")
    return value


def check_can_be_saved(name: str, config: Any) -> None:
    """Refuse a configuration that no file can hold, by the keys that other versions have: a number
    beyond all bounds, say, or too many levels. It would also keep all others from being saved."""
    value = config
    for _ in range(_AROUND):
        value = [value]
    try:
        fastjson.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"the configuration of {name} cannot be saved: {type(error).__name__}: {error}",
        ) from None


def known_topic(broker: Broker, name: str) -> TopicConfig:
    """The topic's configuration; Refused when there is none."""
    config = broker.topics.get(name)
    if config is None:
        raise Refused(
            ResponseCode.TOPIC_NOT_EXIST,
            resource_names.topic_problem(name) or f"topic[{name}] not exist, apply first please!",
        )
    return config


def known_group(broker: Broker, name: str) -> GroupConfig:
    """The group's configuration; Refused when there is none."""
    config = broker.groups.find(name)
    if config is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            resource_names.group_problem(name) or f"subscription group [{name}] does not exist",
        )
    return config


def answer_when_saved(request: Request, answer: Command, *files: TableFile) -> Command | None:
    """`answer`, once all changes in these files are on disk; else why they are not."""
    unsaved = [file for file in files if not file.is_saved]
    if not unsaved:
        return answer
    first, *others = unsaved
    connection = request.connection
    connection.waits_begin()

    def saved(error: OSError | None) -> None:
        if error is None:
            last = answer_when_saved(request, answer, *others)
        else:
            remark = unsaved_text(first, error)
            last = request.command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        connection.waits_end()
        if last is not None:
            request.reply(last)

    first.when_saved(saved)
    return None


def reply_later(request: Request, answer: Callable[[], Awaitable[Command]]) -> None:
    """Answer the request when `answer` has come."""

    async def run() -> None:
        try:
            found = await answer()
        except Refused as refused:
            found = request.command.answer(refused.code, remark=refused.remark)
        except Exception as error:
            found = failed(request, error)
        request.reply(found)

    task = asyncio.get_running_loop().create_task(run())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def in_slices(request: Request, work: Generator[None, None, Command | None]) -> None:
    """Do work that may be long, a slice in each turn of the loop, and answer with what it returns;
    None: that answers later."""

    def run() -> Iterator[None]:
        try:
            answer = yield from work
        except Refused as refused:
            answer = request.command.answer(refused.code, remark=refused.remark)
        except Exception as error:
            answer = failed(request, error)
        connection.waits_end()
        if answer is not None:
            request.reply(answer)

    connection = request.connection
    connection.waits_begin()
    InOrder().add(connection.turns, run())


def put_listed(
    request: Request,
    kind: str,
    checked: Callable[[dict[Any, Any]], Config],
    put: Callable[[Config], object],
    file: TableFile,
) -> None:
    """Create or change several topics or groups (`kind`), all or none; one that comes twice as its
    last entry says."""
    entries = read_body(request).get(f"{kind}ConfigList")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{kind}ConfigList is not a list of {kind}s")
    last = {str(entry.get(f"{kind}Name") or ""): entry for entry in entries}

    def work() -> Generator[None, None, Command | None]:
        configs = []
        for entry in last.values():
            configs.append(checked(entry))
            yield
        for config in configs:
            put(config)
            yield
        return answer_when_saved(request, success(request), file)

    in_slices(request, work())


def unsaved_text(file: TableFile, error: OSError) -> str:
    return (
        f"the change is made but {file.path} cannot be saved, so a restart would undo it: "
        f"{error}; it will be retried"
    )


def peer(request: Request) -> str:
    return request.connection.name
