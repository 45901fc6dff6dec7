"""The SINK_ requests: our own, for the exactly-once Spark sink and for inspecting its ledger.

docs/protocol-extensions.md has their fields. The work is `services.batch_ledger`'s.
"""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, Final

import structlog

from aerobee.broker.base.refused import Refused
from aerobee.broker.compiled import hot
from aerobee.broker.handlers.common import bound, read_body
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.send import Sends
from aerobee.broker.handlers.send_rules import LATE, STORED, code_of, flush_failed_text
from aerobee.broker.net.requests import Handler, Request
from aerobee.broker.services.batch_ledger import ROW
from aerobee.broker.services.ledger_book import Chunk
from aerobee.broker.store.results import PutStatus
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import check_batch
from aerobee.protocol.files.ids import encode_host
from aerobee.protocol.files.properties import PROPERTIES_SIZE_MAX
from aerobee.protocol.files.record import Message
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import Header, Int32, Int64, SendRequest, decode_ext
from aerobee.protocol.wire.sink_codes import (
    SINK_COMMIT,
    SINK_FORGET,
    SINK_HOME,
    SINK_LIST,
    SINK_PREPARE,
    SINK_STATE,
)

log = structlog.get_logger("aerobee.batch_sink")

QUERY_SIZE_MAX: Final = 128
HOME_SIZE_MAX: Final = 255
CHUNKS_MAX: Final = 100_000
_ROW_NAME_ROOM: Final = 256  # bytes that the row's own name may add to its properties

_tasks: set[asyncio.Task[None]] = set()  # a task without a reference may be collected while it runs


class StateRequest(Header):
    query: str


class HomeRequest(Header):
    query: str
    batch: Int64
    topic: str  # that the rows go to; the permission to send to it is asked for
    home: str
    instead: str = ""  # of this home, which knows that already


class PrepareRequest(Header):
    query: str
    batch: Int64
    partition: Int32
    attempt: Int64
    chunk: Int32
    topic: str
    queue_id: Int32
    born_timestamp: Int64
    producer_group: str = "spark-aerobee"
    named: bool = False  # each row has its name as a property (SPARK_ROW)


class CommitRequest(Header):
    query: str
    batch: Int64
    timeout_ms: Int64


def _state(broker: Broker, request: Request) -> None:
    query = _query(decode_ext(request.command.ext, StateRequest).query)

    async def state() -> dict[str, str]:
        book = broker.batch_ledger.book
        home = await broker.batch_ledger.home_of(query)
        return {"batch": str(book.newest(query))} | ({"home": home} if home else {})

    _answer_later(request, state(), f"looking up {query}")


def _prepare(sends: Sends, request: Request) -> Command | None:
    broker = sends.broker
    fields = decode_ext(request.command.ext, PrepareRequest)
    query = _query(fields.query)
    if fields.batch <= broker.batch_ledger.book.newest(query):
        return request.command.answer(ResponseCode.SUCCESS, {"committed": "true"})
    queue_id = _target_queue(sends, fields)
    _check_rows(request.command.body, _row_mark(fields))
    connection = request.connection
    rows = Message(
        fields.topic,
        queue_id,
        request.command.body,
        born_timestamp=fields.born_timestamp,
        born_host=encode_host(*connection.peer),
        store_host=broker.addresses.store_host(connection.peer, connection.local),
    )
    chunk = Chunk(fields.partition, fields.attempt, fields.chunk, 0, 0)
    result = broker.batch_ledger.chunks.prepare(
        query, fields.batch, chunk, rows, queue_id, named=fields.named
    )
    if not result.ok:
        return request.command.answer(code_of(result.status), remark=result.reason)
    ext = {"offset": str(result.physical_offset), "size": str(result.size)}
    if not broker.store.puts_wait:
        return request.command.answer(ResponseCode.SUCCESS, ext)
    connection.waits_begin()

    def durable(status: PutStatus) -> None:
        connection.waits_end()
        request.reply(_prepared(broker, request, status, ext))

    broker.store.when_durable(result.end_offset, durable)
    return None


def _prepared(broker: Broker, request: Request, status: PutStatus, ext: dict[str, str]) -> Command:
    """As for a send; but a chunk that a failover may lose must be prepared again."""
    if status is PutStatus.PUT_OK:
        return request.command.answer(ResponseCode.SUCCESS, ext)
    if status not in STORED:
        return request.command.answer(code_of(status), remark=flush_failed_text(status))
    if broker.store.settings.has_arbiter:
        remark = f"the chunk is not on all in-sync replicas ({status.name}); prepare it again"
        return request.command.answer(ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)
    return request.command.answer(ResponseCode.SUCCESS, ext, remark=LATE.get(status))


def _query(text: str) -> str:
    if not text or len(text) > QUERY_SIZE_MAX or not text.replace("-", "").isalnum():
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"query {text[:QUERY_SIZE_MAX]!r} is not an id of letters, digits and dashes, at most "
            f"{QUERY_SIZE_MAX}",
        )
    return text


def _target_queue(sends: Sends, fields: PrepareRequest) -> int:
    """The queue that the rows will go to; the topic is made if need be, as for a send."""
    send = SendRequest(fields.topic, max(fields.queue_id, 0), fields.producer_group)
    config = sends.checked_topic(send)
    if fields.queue_id >= 0:
        return fields.queue_id
    return (fields.partition + fields.chunk) % max(1, config.write_queue_nums)


def _row_mark(fields: PrepareRequest) -> bytes:
    """The beginning of a named row's properties; empty if the rows have no names."""
    place = f"{fields.query}/{fields.batch}/{fields.partition}/"
    return f"{ROW}{properties.NAME_END}{place}".encode() if fields.named else b""


def _check_rows(body: bytes | memoryview, mark: bytes) -> None:
    room = PROPERTIES_SIZE_MAX - _ROW_NAME_ROOM
    if hot is not None and hot.sound_batch(body, mark, room):
        return
    try:
        count = check_batch(bytes(body), mark, room)
    except CorruptRecord as error:
        text = f"the chunk's body is invalid: {error}"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, text) from None
    if not count:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the chunk holds no row")


def _list(broker: Broker, request: Request) -> Command:
    body = json.dumps({"queries": broker.batch_ledger.book.entries()}).encode()
    return request.command.answer(ResponseCode.SUCCESS, body=body)


def _forget(broker: Broker, request: Request) -> None:
    query = _query(decode_ext(request.command.ext, StateRequest).query)

    async def forget() -> dict[str, str]:
        if not await broker.batch_ledger.forget(query):
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"the ledger does not know {query}")
        return {}

    _answer_later(request, forget(), f"forgetting {query}")


def _home(broker: Broker, request: Request) -> None:
    fields = decode_ext(request.command.ext, HomeRequest)
    query = _query(fields.query)
    if not 0 < len(fields.home) <= HOME_SIZE_MAX:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"home {fields.home[:HOME_SIZE_MAX]!r} is no name of a broker: 1 to {HOME_SIZE_MAX} "
            "characters",
        )

    async def note() -> dict[str, str]:
        await broker.batch_ledger.note_home(query, fields.batch, fields.home, fields.instead)
        return {}

    _answer_later(request, note(), f"noting the home of {query}")


def _commit(broker: Broker, request: Request) -> None:
    fields = decode_ext(request.command.ext, CommitRequest)
    chunks = _chunks(read_body(request))

    async def commit() -> dict[str, str]:
        query = _query(fields.query)
        await broker.topics.file.saved()  # rows of a topic that a kill forgets are out of reach
        rows = await broker.batch_ledger.commit(query, fields.batch, chunks, fields.timeout_ms)
        return {"committed": "true"} if rows is None else {"rows": str(rows)}

    _answer_later(request, commit(), f"committing batch {fields.batch} of {fields.query}")


def _chunks(body: dict[Any, Any]) -> list[Chunk]:
    rows = body.get("chunks")
    if not isinstance(rows, list) or len(rows) > CHUNKS_MAX:
        reason = f"the commit's body has no list of chunks, or more than {CHUNKS_MAX}"
        raise Refused(ResponseCode.INVALID_PARAMETER, reason)
    try:
        if not all(isinstance(row, list) for row in rows):  # the guard reads them by position
            raise TypeError
        return [Chunk(*(int(number) for number in row)) for row in rows]
    except (TypeError, ValueError):
        reason = "a chunk is [partition, attempt, chunk, offset, size]"
        raise Refused(ResponseCode.INVALID_PARAMETER, reason) from None


def _answer_later(request: Request, work: Coroutine[Any, Any, dict[str, str]], what: str) -> None:
    task = asyncio.get_running_loop().create_task(_run(request, work, what))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _run(request: Request, work: Coroutine[Any, Any, dict[str, str]], what: str) -> None:
    try:
        answer = request.command.answer(ResponseCode.SUCCESS, await work)
    except Refused as refused:
        answer = request.command.answer(refused.code, remark=refused.remark)
    except Exception as error:  # fail this request only: answer, log, continue
        log.exception("a request of the sink failed", what=what)
        text = f"{type(error).__name__}: {error}"
        answer = request.command.answer(ResponseCode.SYSTEM_ERROR, remark=text)
    request.reply(answer)


def handlers(sends: Sends) -> dict[int, Handler]:
    table = {
        SINK_STATE: _state,
        SINK_HOME: _home,
        SINK_COMMIT: _commit,
        SINK_LIST: _list,
        SINK_FORGET: _forget,
    }
    return bound(sends.broker, table) | bound(sends, {SINK_PREPARE: _prepare})
