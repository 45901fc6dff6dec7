"""Routes a request to its handler by code, and turns the outcome into one answer.

A handler is a plain function: it returns its answer, or None when it will answer later through
`Request.reply`. A oneway request is never answered, whatever its handler says.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.histogram import Histogram
from aerobee.broker.base.refused import Refused
from aerobee.broker.base.reports import Reports
from aerobee.protocol.json.fastjson import JsonError
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import RESPONSE_FLAG, Command
from aerobee.protocol.wire.headers import HeaderError

if TYPE_CHECKING:
    from aerobee.broker.net.connection import Connection

log = structlog.get_logger("aerobee.dispatch")

ERROR_TEXT_MAX: Final = 512
CLIENT_ANSWERED: Final = "the client gets an error and may try again"
REFUSALS_EVERY_S: Final = 1.0  # a line for each client; more would drown the rest

# Refusals that no correct client gets. Others (no such topic yet, no permission) are normal.
_BAD_INPUT: Final = frozenset(
    {
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.INVALID_PARAMETER,
    }
)
_reports: Final = Reports(Clock())
_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)


class Request:
    """One request and the connection it came by."""

    __slots__ = ("command", "connection", "principal", "received_at")

    def __init__(self, command: Command, connection: "Connection", received_at: float) -> None:
        self.command = command
        self.connection = connection
        self.received_at = received_at  # the loop's time, in seconds
        self.principal: Any = None  # the user, if `auth` has checked the request

    def reply(self, answer: Command) -> None:
        """Answer later than the handler's return; nothing happens once the peer is gone."""
        if not self.command.is_oneway:
            self.connection.send(answer_to(self.command, answer))


Handler = Callable[[Request], Command | None]


def answer_to(request: Command, answer: Command) -> Command:
    """`answer` made into the response to `request`: its opaque, its codec, the response bit."""
    answer.opaque = request.opaque
    answer.codec = request.codec
    answer.flag |= RESPONSE_FLAG
    return answer


class Dispatcher:
    """The table of handlers by request code."""

    def __init__(
        self, handlers: Mapping[int, Handler], latencies: dict[int, Histogram] | None = None
    ) -> None:
        self.handlers: dict[int, Handler] = dict(handlers)
        self.latencies = {} if latencies is None else latencies  # by request code
        self.latencies.update((code, Histogram()) for code in self.handlers)

    def dispatch(self, request: Request) -> Command | None:
        """The answer to send now, if any."""
        command = request.command
        handler = self.handlers.get(command.code)
        if handler is None:
            answer: Command | None = command.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {command.code} not supported",
            )
        else:
            started = time.perf_counter()
            answer = _run(handler, request)
            self.latencies[command.code].add(time.perf_counter() - started)
        if answer is None:
            return None
        if answer.code:
            log_refusal(request.connection, command.code, command.is_oneway, answer)
        return None if command.is_oneway else answer_to(command, answer)


def _run(handler: Handler, request: Request) -> Command | None:
    try:
        return handler(request)
    except Refused as refused:
        return request.command.answer(refused.code, remark=refused.remark)
    except (HeaderError, JsonError) as error:
        return request.command.answer(ResponseCode.INVALID_PARAMETER, remark=str(error))
    except Exception as error:
        return failed(request, error)


def log_refusal(connection: "Connection", code: int, is_oneway: bool, answer: Command) -> None:
    """Log bad input, and refusals of oneway requests: there is no other trace of them."""
    if answer.code not in _BAD_INPUT and (not is_oneway or answer.code in _STORED):
        return
    now = time.monotonic()
    if now - connection.refusal_logged_at < REFUSALS_EVERY_S:
        connection.suppressed_refusals += 1
        return
    log.info(
        "request refused",
        code=code,
        answer=answer.code,
        oneway=is_oneway,
        peer=connection.name,
        reason=answer.remark,
        not_logged_before=connection.suppressed_refusals,
    )
    connection.refusal_logged_at = now
    connection.suppressed_refusals = 0


def failed(request: Request, error: Exception) -> Command:
    """The answer to a request whose handling failed."""
    text = failure_text(request.command.code, request.connection, error)
    return request.command.answer(ResponseCode.SYSTEM_ERROR, remark=text)


def failure_text(code: int, connection: "Connection", error: Exception) -> str:
    """Log a request that failed; returns the text for the client. Others are not affected."""
    if isinstance(error, OSError):
        _reports.disk_error(
            f"a request of code {code} failed", error, call="", then=CLIENT_ANSWERED
        )
    else:
        log.error("request failed", code=code, peer=connection.name, exc_info=error)
    return f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
