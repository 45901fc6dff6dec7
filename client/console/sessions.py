"""Sessions of browsers, each with a CSRF token for changes and the rights of its user."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import quote

from aerobee.client.client import Client
from aerobee.client.console.options import ConsoleOptions
from aerobee.client.console.safety import is_equal
from aerobee.client.console.view import View
from aerobee.client.errors import AerobeeError, Misuse
from aerobee.client.transport.url import SCHEME, TLS_SCHEME, given_url

SESSION_SECONDS: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1000
WRONG_TOKENS_PAUSE: Final = 0.5  # how long a wrong one takes


class Viewer(NamedTuple):
    """Who sent a request: a browser's session, and the user that a proxy names."""

    cookie: str | None = None
    person: str = ""


@dataclass(slots=True)
class Session:
    """`token` accompanies each change: protection against CSRF."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    person: str = ""  # the user named by the proxy
    user: str = ""
    view: View | None = None
    trusted: bool = False  # has given the console's token, or needs none
    seen: float = field(default_factory=time.monotonic)


class Sessions:
    """Sessions by the cookie's value. Those without a user share one view of the cluster."""

    def __init__(self, options: ConsoleOptions) -> None:
        self._options = options
        self._sessions: dict[str, Session] = {}
        self._view: View | None = None
        self._opening = asyncio.Lock()

    def find(self, viewer: Viewer) -> Session | None:
        session = self._sessions.get(viewer.cookie or "")
        if session is None or session.person != viewer.person:
            return None
        if session.seen + SESSION_SECONDS < time.monotonic():
            return None
        session.seen = time.monotonic()
        return session

    async def begin(self, person: str) -> tuple[str, Session]:
        """A new session; returns the value of its cookie."""
        while len(self._sessions) >= SESSIONS_MAX:
            oldest = min(self._sessions, key=lambda name: self._sessions[name].seen)
            await self.end(oldest)
        cookie = secrets.token_urlsafe(32)
        session = self._sessions[cookie] = Session(person=person, trusted=not self._options.token)
        return cookie, session

    async def trust(self, session: Session, token: str) -> None:
        if not is_equal(token, self._options.token):
            await asyncio.sleep(WRONG_TOKENS_PAUSE)
            raise Misuse("that is not this console's token")
        session.trusted = True

    async def log_in(self, session: Session, user: str, secret: str) -> None:
        """From now on all requests are signed as this user."""
        if not user or not secret:
            raise Misuse("a user and a secret are needed")
        client = Client(with_credentials(self._options.url, user, secret), timeout=5.0)
        await client.open()
        view = View(client, self._options)
        try:
            await view.brokers()
        except BaseException:
            await client.close()
            raise
        await self.log_out(session)
        session.user, session.view = user, view

    async def view(self, session: Session) -> View:
        if session.view is not None:
            return session.view
        async with self._opening:
            if self._view is None:
                client = Client(self._options.url, timeout=5.0)
                await client.open()
                self._view = View(client, self._options)
        return self._view

    async def end(self, cookie: str) -> None:
        session = self._sessions.pop(cookie, None)
        if session is not None:
            await self.log_out(session)

    async def log_out(self, session: Session) -> None:
        view, session.view, session.user = session.view, None, ""
        if view is not None:
            await _close(view)

    async def close(self) -> None:
        for cookie in list(self._sessions):
            await self.end(cookie)
        if self._view is not None:
            view, self._view = self._view, None
            await _close(view)


async def _close(view: View) -> None:
    await view.jobs.close()
    try:
        await view.mq.close()
    except AerobeeError:
        return  # it is removed anyway


def with_credentials(url: str | None, user: str, secret: str) -> str:
    """The same name servers, with this user's credentials."""
    text = given_url(url)
    scheme = TLS_SCHEME if text.startswith(TLS_SCHEME) else SCHEME
    servers = text.removeprefix(scheme).rpartition("@")[2]
    return f"{scheme}{quote(user, safe='')}:{quote(secret, safe='')}@{servers}"
