"""The console's event loop: it queries the cluster for the threads of the HTTP server."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec

from aerobee.client.console.download import Download
from aerobee.client.console.options import ConsoleOptions
from aerobee.client.console.routes import READS, SHARED, WRITES, Answering
from aerobee.client.console.safety import is_equal
from aerobee.client.console.sessions import Session, Sessions, Viewer
from aerobee.client.console.view import Params, View
from aerobee.client.errors import (
    AerobeeError,
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    Misuse,
    NotFound,
    RequestTimeout,
)
from aerobee.protocol.wire.codes import ResponseCode

log = logging.getLogger("aerobee.console")

ANSWER_SECONDS: Final = 60.0
PAGE_SECONDS: Final = 1.0
_SHOWN: Final = ("topic", "group", "id", "to", "consume", "handle")
_STATUS: Final[list[tuple[type[AerobeeError], HTTPStatus]]] = [
    (Misuse, HTTPStatus.BAD_REQUEST),
    (NotFound, HTTPStatus.NOT_FOUND),
    (BrokerError, HTTPStatus.CONFLICT),
    (ConnectFailed, HTTPStatus.BAD_GATEWAY),
    (ConnectionLost, HTTPStatus.BAD_GATEWAY),
    (RequestTimeout, HTTPStatus.GATEWAY_TIMEOUT),
]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the HTTP server sends."""

    status: int
    body: bytes
    content_type: str = "application/json"
    download: str = ""
    cookie: str = ""


class Console:
    """Everything but HTTP. Created in one thread, called from many."""

    def __init__(self, options: ConsoleOptions) -> None:
        self.options = options
        self.asked_at = time.monotonic()
        self._answering = 0
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._sessions = Sessions(options)
        self._thread = threading.Thread(target=self._run, name="aerobee-console", daemon=True)
        self._thread.start()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A request, from its header to the last byte of its answer."""
        with self._lock:
            self._answering += 1
        try:
            yield
        finally:
            with self._lock:
                self._answering -= 1
                self.asked_at = time.monotonic()

    def is_idle(self, seconds: float) -> bool:
        """Whether no request is in progress, and none was for this long."""
        with self._lock:
            return not self._answering and time.monotonic() - self.asked_at >= seconds

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def close(self) -> None:
        self._wait(self._sessions.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(ANSWER_SECONDS)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise RequestTimeout(
                f"the cluster did not answer within {ANSWER_SECONDS:g} s"
            ) from None

    def read(self, name: str, params: Params, viewer: Viewer) -> Answer:
        return self._answer(self._read(name, params, viewer))

    def write(
        self, name: str, params: Params, viewer: Viewer, token: str | None, peer: str
    ) -> Answer:
        answer = self._answer(self._write(name, params, viewer, token))
        # An audit line: who changed what; never a secret or a body.
        shown = {key: params[key] for key in _SHOWN if key in params}
        session = self._sessions.find(viewer)
        names = (viewer.person, session.user if session is not None else "")
        who = " as ".join(filter(None, names)) or "an anonymous user"
        log.warning("change %s %s by %s from %s: %d", name, shown, who, peer, answer.status)
        return answer

    def _answer(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            found = self._wait(work)
        except AerobeeError as error:
            return refused(status_of(error), str(error))
        except Exception:
            log.exception("a page failed")
            text = "this is a bug of the console: its log says what failed"
            return refused(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        assert isinstance(found, Answer)
        return found

    async def _read(self, name: str, params: Params, viewer: Viewer) -> Answer:
        session = self._sessions.find(viewer)
        if name == "session":
            return await self._session_answer(session, viewer)
        reader = READS.get(name)
        if reader is None:
            return refused(HTTPStatus.NOT_FOUND, f"there is no {name!r} here")
        if session is None or not session.trusted:
            return refused(HTTPStatus.UNAUTHORIZED, "log in first", login=self._login(session))
        try:
            found = await page_of(reader, name, params, await self._sessions.view(session))
        except BrokerError as error:
            return _refused_by_broker(error, session)
        if isinstance(found, Download):
            return Answer(HTTPStatus.OK, found.body, found.content_type, download=found.name)
        return Answer(HTTPStatus.OK, found)

    async def _write(self, name: str, params: Params, viewer: Viewer, token: str | None) -> Answer:
        session = self._sessions.find(viewer)
        if session is None or not is_equal(token, session.token):
            return refused(HTTPStatus.FORBIDDEN, "the page is too old: reload it")
        if name in ("login", "logout"):
            await self._log(session, name, params)
            return Answer(HTTPStatus.OK, encode({"user": session.user}))
        if not session.trusted:
            return refused(HTTPStatus.UNAUTHORIZED, "log in first", login=self._login(session))
        writer = WRITES.get(name)
        if writer is None:
            return refused(HTTPStatus.NOT_FOUND, f"there is no {name!r} here")
        if not self.options.write:
            text = "this console is read-only: start it with --allow-changes (broker: consoleWrite)"
            return refused(HTTPStatus.FORBIDDEN, text)
        view = await self._sessions.view(session)
        try:
            found = await writer(view, params)
        except BrokerError as error:
            return _refused_by_broker(error, session)
        finally:
            view.shared.forget()
        return Answer(HTTPStatus.OK, encode(found))

    async def _log(self, session: Session, name: str, params: Params) -> None:
        if name == "logout":
            await self._sessions.log_out(session)
        elif "token" in params:
            await self._sessions.trust(session, str(params["token"]))
        elif not session.trusted:
            raise Misuse("this console asks for its token first")
        else:
            user, secret = str(params.get("user", "")), str(params.get("secret", ""))
            await self._sessions.log_in(session, user, secret)

    async def _session_answer(self, session: Session | None, viewer: Viewer) -> Answer:
        cookie = ""
        if session is None:
            cookie, session = await self._sessions.begin(viewer.person)
        info = {
            "token": session.token,
            "user": session.user,
            "person": session.person,
            "write": self.options.write,
            "bodies": not self.options.hide_bodies,
            "login": self._login(session),
        }
        return Answer(HTTPStatus.OK, encode(info), cookie=cookie)

    def _login(self, session: Session | None) -> str:
        """What the browser has to give first: the console's token, or nothing."""
        trusted = session.trusted if session is not None else not self.options.token
        return "" if trusted else "token"


async def page_of(reader: Answering, name: str, params: Params, view: View) -> bytes | Download:
    """What the page shows, computed once for requests at about the same time."""

    async def ask() -> bytes | Download:
        found = await reader(view, params)
        return found if isinstance(found, Download) else encode(found)

    if name not in SHARED:
        return await ask()
    kept: bytes = await view.shared.get((name, *sorted(params.items())), PAGE_SECONDS, ask)
    return kept


def _refused_by_broker(error: BrokerError, session: Session) -> Answer:
    """Without the right to do it: offer a login as another user."""
    if error.code != ResponseCode.NO_PERMISSION:
        return refused(status_of(error), str(error))
    return refused(HTTPStatus.FORBIDDEN, str(error), login="" if session.user else "user")


def status_of(error: AerobeeError) -> int:
    found = (status for kind, status in _STATUS if isinstance(error, kind))
    return next(found, HTTPStatus.INTERNAL_SERVER_ERROR)


def refused(status: int, text: str, *, login: str = "") -> Answer:
    return Answer(status, encode({"error": text} | ({"login": login} if login else {})))


def encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a property with lone surrogates; JSON can escape them
        return json.dumps(value).encode()
