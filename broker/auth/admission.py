"""Which requests of one connection the hot path may answer.

Nothing is refused here: a frame that is not admitted takes the general path, where the guard gives
the reason.

A right is looked up once for each user, topic and generation of users; signatures are always
checked.
"""

from binascii import b2a_base64
from collections.abc import Callable, Collection
from hmac import compare_digest
from typing import Final, Protocol

import msgspec

from aerobee.broker.auth.guard import Guard
from aerobee.broker.auth.signature import Keyed, is_made_by, is_signed_by, keyed
from aerobee.broker.auth.verdicts import Denied, Principal, proven, pull_asks, send_asks
from aerobee.broker.net.connection import Connection
from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ
from aerobee.protocol.wire.frame import RawFrame
from aerobee.protocol.wire.signing import ACCESS_KEY

REMEMBERED_MAX: Final = 10_000  # pullers of one connection


class _Header(msgspec.Struct):
    """The ext fields of a JSON header, when all of them are texts."""

    extFields: dict[str, str]


class _PackedHeader(msgspec.Struct, array_like=True):
    """The same in MessagePack."""

    code: int
    flag: int
    opaque: int
    language: int
    version: int
    remark: str | None
    extFields: dict[str, str]


_json_header: Final = msgspec.json.Decoder(_Header).decode
_packed_header: Final = msgspec.msgpack.Decoder(_PackedHeader).decode
_EXT_OF: Final[dict[int, Callable[[bytes], dict[str, str]]]] = {
    JSON: lambda header: _json_header(header).extFields,
    ROCKETMQ: lambda header: decode_command(ROCKETMQ, header).ext,
    MSGPACK: lambda header: _packed_header(header).extFields,
}
_SENDS: Final = int(RequestCode.SEND_MESSAGE_V2)  # sends and pulls are signed alike
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, ProtocolError, RecursionError)


class ProvenFields(Protocol):
    """The fields of a send, as the hot path decodes them."""

    AccessKey: str
    b: str
    Signature: str
    fresh_code: str
    fresh_number: str
    fresh_time: str


SendCheck = Callable[[int, ProvenFields, bytes, bytes], bool]  # code, fields, signed text, body


class Admission:
    """The state of one connection's requests."""

    def __init__(self, guard: Guard, connection: Connection) -> None:
        self._guard = guard
        self._connection = connection
        self._pullers: dict[tuple[str, str, str], Principal] = {}  # access key, topic, group
        self._generation = -1  # generation of the users that this is valid for
        # The last sender: principal, access key, topic, and whether its sends must be fresh.
        self.sender: tuple[Principal, str, str, bool] | None = None

    def is_current(self, principal: Principal) -> bool:
        """Whether users and rights have not changed since the principal was found."""
        return principal.generation == self._guard.book.generation

    def puller(self, code: int, frame: RawFrame, topic: str, group: str) -> Principal | None:
        """The principal that pulls from the topic for a group, if the fast path may answer it."""
        guard, connection, known = self._guard, self._connection, self._pullers
        if self._generation != guard.book.generation or len(known) > REMEMBERED_MAX:
            known.clear()
            self._generation = guard.book.generation
        codec, header, body = frame
        try:
            ext = _EXT_OF[codec](header)
            key = (ext.get(ACCESS_KEY, ""), topic, group)
            principal = known.get(key)
            if principal is None:
                address, certified = connection.peer[0], connection.certified
                principal = guard.authenticate(_SENDS, ext, body, address, certified)
                guard.check(principal, pull_asks(topic, group))
                known[key] = principal
            elif principal.secrets and not is_signed_by(principal.secrets, _SENDS, ext, body):
                return None
            if guard.must_be_fresh(principal) and guard.why_stale(principal, code, ext):
                return None
        except (*_UNREADABLE, Denied):
            return None
        connection.user = proven(principal)
        return principal

    def send_check(self) -> SendCheck:
        """Checks whether sends may take the fast path; a closure, because it runs for each send."""
        guard, connection = self._guard, self._connection
        book, why_stale = guard.book, guard.freshness.why_stale
        last = ("", "", -1)  # access key, topic, generation of users
        user = ""
        makers: tuple[Keyed, ...] = ()  # of this user's signatures; empty: it need not sign
        must_be_fresh = False

        def admits(code: int, fields: ProvenFields, content: bytes, body: bytes) -> bool:
            nonlocal last, user, makers, must_be_fresh
            name, topic, generation = last
            if fields.AccessKey != name or fields.b != topic or book.generation != generation:
                name, topic = fields.AccessKey, fields.b
                principal = self._sender(fields, content, body)
                if principal is None:
                    return False
                last = name, topic, principal.generation
                user = proven(principal)
                makers = tuple(map(keyed, principal.secrets))
                must_be_fresh = guard.must_be_fresh(principal)
                self.sender = principal, name, topic, must_be_fresh
            elif makers:
                given = fields.Signature.encode()
                for inner_copy, outer_copy in makers:
                    inner, outer = inner_copy(), outer_copy()
                    inner.update(content)
                    inner.update(body)
                    outer.update(inner.digest())
                    if compare_digest(b2a_base64(outer.digest(), newline=False), given):
                        break
                else:
                    return False
            connection.user = user  # another user's request may have come in between
            if not must_be_fresh:
                return True
            signed_code, number, made = fields.fresh_code, fields.fresh_number, fields.fresh_time
            return not why_stale(name, code, signed_code, number, made)

        return admits

    def _sender(self, fields: ProvenFields, content: bytes, body: bytes) -> Principal | None:
        """The principal that sends to the topic, if the fast path may take it."""
        given = fields.Signature.encode()

        def is_signed(known: Collection[str] | None) -> bool:
            return is_made_by(known, content, body, given)

        guard, name = self._guard, fields.AccessKey
        address, certified = self._connection.peer[0], self._connection.certified
        try:
            principal = guard.identify(_SENDS, name, is_signed, address, certified)
            guard.check(principal, send_asks(fields.b))
        except Denied:
            return None
        return principal
