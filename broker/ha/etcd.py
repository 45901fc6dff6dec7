"""The arbiter on etcd 3.4 and later, by the JSON gateway that every etcd server has.

Requests are made by the standard library's HTTP client in threads of this adapter's own: for the
record, for the lease, which must not wait for the others, and for the watch. The client library
that is maintained and knows asyncio supports one endpoint only, and no TLS.

    PREFIX/CLUSTER/NAME/state       the record, changed by a transaction on its mod_revision
    PREFIX/CLUSTER/NAME/alive/ID    what replica ID announces, under its lease
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPException
from typing import Any, Final

import structlog

from aerobee.broker.ha.arbiter import Alive, ArbiterError, Record, View
from aerobee.broker.ha.etcd_gateway import Gateway

log = structlog.get_logger("aerobee.ha")

WATCH_AGAIN_S: Final = 1.0
SILENCE_S: Final = 60.0  # without news from a watch before it reconnects


class EtcdArbiter:
    """One broker's name in etcd, as one replica sees and changes it."""

    def __init__(
        self,
        endpoints: Sequence[str],
        folder: str,
        broker_id: int,
        lease_ms: int,
        *,
        context: ssl.SSLContext | None = None,
        user: tuple[str, str] | None = None,
    ) -> None:
        """`folder`: PREFIX/CLUSTER/NAME."""
        lease_s = lease_ms / 1000
        self._folder = folder
        self._id = broker_id
        self._lease_s = max(1, round(lease_s))
        self._lease = 0
        timeout_s = min(max(lease_s / 3, 0.5), 2.0)
        self._records = Gateway(endpoints, timeout_s, context, user)
        self._leases = Gateway(endpoints, timeout_s, context, user)
        self._watching = Gateway(endpoints, timeout_s, context, user)
        self._threads = {
            gateway: ThreadPoolExecutor(1, "aerobee-etcd")
            for gateway in (self._records, self._leases, self._watching)
        }
        self._change = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._closed = False
        self._odd: set[str] = set()  # foreign announcements that were logged

    @property
    def local(self) -> tuple[str, int]:
        """Our address, as a machine that is reached from it may know us."""
        return self._records.local

    async def _ask(
        self, gateway: Gateway, path: str, content: dict[str, Any], *, repeatable: bool = False
    ) -> dict[str, Any]:
        """`repeatable`: it does no harm if two endpoints get it."""
        loop, ask = asyncio.get_running_loop(), partial(gateway.ask, repeatable=repeatable)
        return await loop.run_in_executor(self._threads[gateway], ask, path, content)

    # -- the arbiter's interface

    async def read(self) -> View:
        prefix = self._folder + "/"
        wanted = {"key": _b64(prefix), "range_end": _prefix_end(prefix)}
        found = await self._ask(self._records, "/v3/kv/range", wanted, repeatable=True)
        record, revision = None, 0
        alive: dict[int, Alive] = {}
        with _understood("/v3/kv/range"):
            for row in found.get("kvs") or []:
                key, value = b64decode(row["key"]).decode(), b64decode(row.get("value", ""))
                if key == f"{self._folder}/state":
                    revision = int(row["mod_revision"])
                    record = Record.decode(value)
                elif known := self._announced(key, value):
                    alive[known.broker_id] = known
        return View(record, revision, alive)

    def _announced(self, key: str, value: bytes) -> Alive | None:
        """None: not an announcement of ours; it is ignored."""
        if not key.startswith(f"{self._folder}/alive/"):
            return None
        try:
            known = Alive.decode(value)
            if key != f"{self._folder}/alive/{known.broker_id}":
                raise ValueError(f"it is of broker {known.broker_id}")
        except ValueError as error:
            if key not in self._odd:
                log.warning(
                    "an announcement in etcd is not one of Aerobee's", key=key, reason=str(error)
                )
            self._odd.add(key)
            return None
        return known

    async def compare_and_set(self, revision: int, record: Record) -> int | None:
        key = _b64(f"{self._folder}/state")
        compare = {"key": key, "target": "MOD", "mod_revision": str(revision), "result": "EQUAL"}
        put = {"request_put": {"key": key, "value": _b64(record.encode())}}
        change = {"compare": [compare], "success": [put]}
        answer = await self._ask(self._records, "/v3/kv/txn", change)
        with _understood("/v3/kv/txn"):
            return int(answer["header"]["revision"]) if answer.get("succeeded") else None

    async def announce(self, alive: Alive) -> None:
        if not self._lease:
            wanted = {"TTL": str(self._lease_s)}
            answer = await self._ask(self._leases, "/v3/lease/grant", wanted, repeatable=True)
            with _understood("/v3/lease/grant"):
                self._lease = int(answer["ID"])
        row = {"key": _b64(f"{self._folder}/alive/{self._id}"), "value": _b64(alive.encode())}
        try:
            await self._ask(self._leases, "/v3/kv/put", row | {"lease": str(self._lease)})
        except ArbiterError:
            self._lease = 0  # the lease may have expired
            raise

    async def renew(self) -> bool:
        if not self._lease:
            return False
        lease = {"ID": str(self._lease)}
        answer = await self._ask(self._leases, "/v3/lease/keepalive", lease, repeatable=True)
        with _understood("/v3/lease/keepalive"):
            if int(answer.get("result", {}).get("TTL", 0)) <= 0:
                self._lease = 0
        return bool(self._lease)

    async def withdraw(self) -> None:
        lease, self._lease = self._lease, 0
        if lease:
            await self._ask(self._leases, "/v3/lease/revoke", {"ID": str(lease)})

    async def changed(self) -> None:
        if self._watch is None:
            self._watch = asyncio.create_task(self._run_watch(), name="etcd watch")
        await self._change.wait()
        self._change.clear()

    async def close(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        with suppress(OSError):
            self._watching.abort()
        for thread in self._threads.values():
            await asyncio.to_thread(thread.shutdown)
        self._records.close()
        self._leases.close()

    # -- the watch

    async def _run_watch(self) -> None:
        """Report each change. After the stream ended, changes may have been missed."""
        loop, thread = asyncio.get_running_loop(), self._threads[self._watching]
        while True:
            with suppress(ArbiterError):
                await loop.run_in_executor(thread, self._follow_changes, loop)
            self._change.set()
            await asyncio.sleep(WATCH_AGAIN_S)

    def _follow_changes(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the thread, until the stream ends."""
        prefix = self._folder + "/"
        create = {"key": _b64(prefix), "range_end": _prefix_end(prefix)}
        gateway = self._watching
        try:
            response = gateway.begin("/v3/watch", {"create_request": create})
            gateway.set_read_timeout(SILENCE_S)
            # Before the first read too: `abort` does nothing while the socket is being opened.
            while not self._closed and response.readline():  # one JSON object each
                loop.call_soon_threadsafe(self._change.set)
        except (OSError, HTTPException, RuntimeError, ValueError):
            pass  # silent for long, or closed by us or by etcd: reconnect
        finally:
            gateway.close()
            gateway.forget_token()  # a watch that is not permitted just ends


@contextmanager
def _understood(path: str) -> Iterator[None]:
    """ArbiterError when the answer is not etcd's, but a proxy's or another server's."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArbiterError(f"the answer to {path} cannot be understood: {error!r}") from None


def _b64(text: str | bytes) -> str:
    return b64encode(text.encode() if isinstance(text, str) else text).decode()


def _prefix_end(prefix: str) -> str:
    data = prefix.encode()
    return _b64(data[:-1] + bytes([data[-1] + 1]))
