"""Requests that cannot be replayed: each says, signed, when it was made, its number and its code.

A connection of our SDK has a session and counts its requests; the broker takes each number once, in
order. It forgets a session when all its requests are too old to be taken, so the memory is bounded
by the sessions of some minutes, and by a limit per user. What was made when a forgotten session was
in use is not taken again, also if the clock is set back and it seems new.
"""

import re
from collections import Counter
from typing import Final

from aerobee.broker.base.clock import Clock
from aerobee.protocol.wire.signing import FRESH_CODE, FRESH_NUMBER, FRESH_TIME

SESSIONS_MAX: Final = 100_000  # of all users
SESSIONS_PER_USER_MAX: Final = 10_000
# A session has one length. The signature covers the values of the fields, one after the other: else
# a digit of the session, moved to a field of its own before it, would make it another session.
NUMBER: Final = re.compile(r"([0-9a-f]{16})\.([0-9]{1,18})", re.ASCII)


class Freshness:
    """What sessions have sent."""

    def __init__(self, clock: Clock, window_ms: int) -> None:
        self._clock = clock
        self._window_ms = window_ms
        self._started_ms = clock.now_ms()
        self._forgotten_ms = self._started_ms  # requests that were made before may be copies
        # Last number, when it came by the monotonic clock, and when the newest was made.
        self._sessions: dict[tuple[str, str], tuple[int, float, int]] = {}
        self._of_user: Counter[str] = Counter()
        self._swept_at = clock.monotonic()

    def why_stale(self, user: str, code: int, signed_code: str, number: str, made: str) -> str:
        """Why the request is refused; "": it is accepted, and would be refused a second time."""
        if not (signed_code and number and made.isascii() and made.isdigit() and len(made) < 18):
            return (
                f"User:{user} must send requests that cannot be replayed: they say when they were "
                f"made ({FRESH_TIME}), their number ({FRESH_NUMBER}) and their code "
                f"({FRESH_CODE}), as Aerobee's SDK does"
            )
        if signed_code != str(code):
            return f"the request was signed for code {signed_code:.12} and not for {code}"
        now_ms = self._clock.now_ms()
        ahead_ms = int(made) - now_ms
        if abs(ahead_ms) > self._window_ms:
            where = "ahead of" if ahead_ms > 0 else "behind"
            return (
                f"the request was made {abs(ahead_ms) / 1000:.1f} s {where} the broker's clock, at "
                f"most {self._window_ms / 1000:g} s are allowed (requestFreshnessMillis): it is a "
                "copy, or the clocks must be set right"
            )
        if int(made) < self._forgotten_ms:
            if now_ms < self._forgotten_ms:
                return (
                    f"the broker's clock was set back: what was made in the next "
                    f"{(self._forgotten_ms - now_ms) / 1000:.1f} s by this clock may be a copy; "
                    "restart the broker if the clock is right now"
                )
            return (
                f"the request was made before the broker has started, {-ahead_ms / 1000:.1f} s "
                "behind its clock: it may be a copy; send a new one"
            )
        return self._take(user, number, int(made))

    def _take(self, user: str, number: str, made_ms: int) -> str:
        parts = NUMBER.fullmatch(number)
        if parts is None:
            return (
                f"{FRESH_NUMBER} must be a session of 16 hexadecimal digits and a number with a "
                "point between"
            )
        session, counted = parts.groups()
        key = (user, session)
        now = self._clock.monotonic()
        last = self._sessions.get(key)
        if last is None:
            self._sweep(now)
            if len(self._sessions) >= SESSIONS_MAX or self._of_user[user] >= SESSIONS_PER_USER_MAX:
                return (
                    f"User:{user} has begun too many sessions (at most {SESSIONS_PER_USER_MAX} in "
                    f"{2 * self._window_ms / 1000:g} s, {SESSIONS_MAX} of all users); keep "
                    "connections open"
                )
            self._of_user[user] += 1
        elif int(counted) <= last[0]:
            return f"request {number} was received before: copies are not accepted"
        else:
            made_ms = max(made_ms, last[2])
        self._sessions[key] = int(counted), now, made_ms
        return ""

    def _sweep(self, now: float) -> None:
        """Forget sessions of which every request is too old by now."""
        window_s = self._window_ms / 1000
        if now - self._swept_at < window_s and len(self._sessions) < SESSIONS_MAX:
            return
        self._swept_at = now
        kept: dict[tuple[str, str], tuple[int, float, int]] = {}
        for key, session in self._sessions.items():
            _, came, made_ms = session
            if now - came <= 2 * window_s:  # a client's clock may be ahead by one
                kept[key] = session
            else:
                self._forgotten_ms = max(self._forgotten_ms, made_ms + 1)
        self._sessions = kept
        self._of_user = Counter(user for user, _ in kept)
