"""Every call site of the disk port fails: `python -m crash.io_faults [SHARE [PART [FAULT ...]]]`.

All of them, or one of SHARE; with PART (from 0) the others of the same share. A call fails by EIO,
ENOSPC or EROFS, or writes half of its data and then has no room (`short`), or takes 2 s (`slow`).

A script of two lives of a whole broker (sends that roll files, timers, delays, transactions,
changes of the configuration, a batch of the ledger, cleaning, a stop, a start) is run once to find
the call sites: the call, and the function of the broker that makes it. Then it is run again for
each site, error and duration. What must hold:

- what was answered as stored is there once the disk works again, and the broker takes sends again,
- every request is answered in time, with a reason where it is refused,
- no part of the broker ends, no traceback is logged; a start that cannot be is refused in words,
- the error is told, by the log or to whoever waits, and no cause is logged twice.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from peers.in_process import SMALL, Client, pull_ext, send_ext
from store.faulty_disk import FaultyDisk, ShortWrite, kind_of
from structlog.testing import capture_logs
from waiting import until

from aerobee.broker.base.refused import Refused
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.net.listening import StartError
from aerobee.broker.services.ledger_book import Chunk
from aerobee.broker.settings import Settings
from aerobee.broker.store.errors import StoreError
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.files.record import Message
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

SHORT, SLOW = "short", "slow"
NUMBERS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS, SHORT: errno.ENOSPC}
FAULTS = (*NUMBERS, SLOW)
WRITES = frozenset({"write", "write_small"})  # calls that can be short
SLOW_S = 2.0
SLOW_TIMES = 10  # instead of forever: the script waits for each of them
SLOW_AT_ONCE = 6  # concurrent cases: they mostly sleep
# Best-effort calls, for speed or for other programs: nothing depends on them.
SILENT = frozenset({"prewrite", "modified_ms", "set_modified_ms"})
# Logged for each slow put or flush, on a slow disk or a busy machine.
REPEATED = frozenset({"put_message_lock was held long", "a flush of the commitlog was slow"})
FOR_EVER = 1 << 30
PATIENCE_S = 0.4  # for conditions that may never hold
LIFE_S = 40.0
SETTINGS: dict[str, Any] = SMALL | {
    "flush_disk_type": "SYNC_FLUSH",
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 20 * 40,
    "mapped_file_size_timer_log": 4096,
    "max_index_num": 60,
    "file_reserved_time": 0,
    "clean_resource_interval": 50,
    "flush_consumer_offset_interval": 50,
    "flush_delay_offset_interval": 50,
    "flush_consume_queue_thorough_interval": 50,
    "flush_interval_consume_queue": 50,
    "timer_flush_interval_ms": 20,
    "transaction_check_interval": 50,
    "transaction_time_out": 100,
    "message_delay_level": "1s 5s",
}
_FOLDERS = ("commitlog", "consumequeue", "index", "timerlog")
_OWN = {"faulty_disk.py", "io_faults.py", "disk.py"}


class Site(NamedTuple):
    call: str
    caller: str
    kind: str  # of file, where one caller has several

    def __str__(self) -> str:
        return f"{self.call} {self.kind} by {self.caller}"


class Case(NamedTuple):
    site: Site
    fault: str
    times: int

    def __str__(self) -> str:
        how_often = "for ever" if self.times > 1 else "once"
        return f"{self.site}: {self.fault} {how_often}"

    @property
    def patience_s(self) -> float:
        """Extra time for the script, compared with a sound disk."""
        return SLOW_S * self.times if self.fault == SLOW else 0.0


class SiteDisk(FaultyDisk):
    """Notes who calls what; one site fails."""

    def __init__(self, case: Case | None = None) -> None:
        super().__init__()
        self.case = case
        self.sites: Counter[Site] = Counter()
        self.raised = 0

    def check(self, call: str, path: str) -> None:
        kind = kind_of(path)
        site = Site(call, caller(), kind if kind in _FOLDERS else "")
        self.sites[site] += 1
        case = self.case
        if case is not None and site == case.site and self.raised < case.times:
            self.raised += 1
            if case.fault == SLOW:
                time.sleep(SLOW_S)
            elif case.fault == SHORT:
                raise ShortWrite(path)
            else:
                number = NUMBERS[case.fault]
                raise OSError(number, os.strerror(number), path)


def caller() -> str:
    frame = sys._getframe(2)
    while os.path.basename(frame.f_code.co_filename) in _OWN and frame.f_back is not None:
        frame = frame.f_back
    code = frame.f_code
    return f"{Path(code.co_filename).stem}.{getattr(code, 'co_qualname', code.co_name)}"


@dataclass
class Run:
    """The outcome of one script."""

    acknowledged: dict[bytes, int] = field(default_factory=dict)  # body: physical offset
    problems: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)  # errors returned to callers


# --- the script


async def run_script(folder: Path, disk: SiteDisk) -> Run:
    run = Run()
    for name, life in (("first life", first_life), ("second life", second_life)):
        raised = disk.raised
        told = len(run.told)
        with capture_logs() as lines:
            await one_life(folder, disk, run, name, life)
        check_lines(name, lines, run)
        if must_be_told(disk, raised) and not is_told(disk.case, lines, run.told[told:]):
            run.problems.append(f"{name}: the error was told to nobody")
    disk.case = None
    with capture_logs():
        await one_life(folder, disk, run, "after it", last_life)
    return run


def must_be_told(disk: SiteDisk, raised_before: int) -> bool:
    case = disk.case
    if case is None or disk.raised == raised_before:
        return False
    if case.fault == SHORT and case.site.caller == "abort_file.AbortFile.mark_running":
        return False  # its existence is all that matters
    return case.fault != SLOW and case.site.call not in SILENT


async def one_life(
    folder: Path,
    disk: SiteDisk,
    run: Run,
    name: str,
    life: Callable[[AppBroker, Client, Run], Any],
) -> None:
    unhandled: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: unhandled.append(str(context.get("exception") or context))
    )
    app = AppBroker(Settings(**SETTINGS, store_path_root_dir=str(folder / "store")), disk=disk)
    try:
        async with asyncio.timeout(LIFE_S + (disk.case.patience_s if disk.case else 0.0)):
            try:
                await app.start()
            except (StartError, StoreError) as refused:
                if disk.case is None:
                    run.problems.append(f"{name}: the start is refused: {refused}")
                run.told.append(str(refused))
                return
            client = await Client.connect(app)
            await life(app, client, run)
            if app.life.failed:
                run.problems.append(f"{name}: {app.life.failed} has ended")
            await client.close()
            await app.stop()
    except TimeoutError:
        run.problems.append(f"{name}: it hangs")
    except Exception as error:
        run.problems.append(f"{name}: {error!r}")
    run.problems += [f"{name}: unhandled {text}" for text in unhandled]


async def ask(
    client: Client, run: Run, code: int, ext: dict[str, str], body: bytes = b""
) -> Command:
    answer = await client.request(code, ext, body)
    if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND):
        run.told.append(answer.remark or "")
        if not answer.remark:
            run.problems.append(f"request {code} is refused by {answer.code} without a reason")
    return answer


async def send(client: Client, run: Run, topic: str, body: bytes, **text: str) -> Command:
    text = {"UNIQ_KEY": body[:12].hex(), "KEYS": body[:12].hex(), "WAIT": "true"} | text
    ext = send_ext(topic, i=properties.encode(text).removesuffix("\x02"))
    answer = await ask(client, run, RequestCode.SEND_MESSAGE_V2, ext, body)
    if answer.code == ResponseCode.SUCCESS:
        run.acknowledged[body] = int(answer.ext["msgId"][16:], 16)
    return answer


async def fill(client: Client, run: Run, name: str) -> None:
    bodies = [b"%s-%02d" % (name.encode(), number) + bytes(6000) for number in range(24)]
    await asyncio.gather(*(send(client, run, "T", body) for body in bodies))


async def first_life(app: AppBroker, client: Client, run: Run) -> None:
    topic = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
    topic |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    await ask(client, run, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
    group = fastjson.dumps({"groupName": "cg", "consumeEnable": True})
    await ask(client, run, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
    await ask(client, run, RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})
    await waiting_messages(client, run, "first")
    await fill(client, run, "first")
    offset = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "3"}
    await ask(client, run, RequestCode.UPDATE_CONSUMER_OFFSET, offset)
    await commit_batch(app, run)
    await read(client, run)
    await patient(lambda: app.broker.timers.pending == 0)
    await asyncio.sleep(0.1)  # let the savers run


async def second_life(app: AppBroker, client: Client, run: Run) -> None:
    await waiting_messages(client, run, "second")
    await fill(client, run, "second")
    store = app.broker.store
    store.clean.trigger()
    await patient(lambda: store.min_physical_offset > 0)
    await read(client, run)
    await ask(client, run, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "D"})
    await asyncio.sleep(0.1)


async def last_life(app: AppBroker, client: Client, run: Run) -> None:
    """The disk works: all that was acknowledged is there, and sends are taken."""
    store = app.broker.store
    for body, offset in run.acknowledged.items():
        if offset < store.min_physical_offset:
            continue
        view = store.record_at(offset)
        if view is None or body not in bytes(view):
            run.problems.append(f"acknowledged {body[:12]!r} at {offset} is gone")
    answer = await send(client, run, "T", b"at last")
    if answer.code != ResponseCode.SUCCESS:
        run.problems.append(f"sends are refused after it: {answer.remark}")


async def waiting_messages(client: Client, run: Run, name: str) -> None:
    soon = str(round(time.time() * 1000) + 1100)
    await send(client, run, "D", b"%s timer" % name.encode(), TIMER_DELIVER_MS=soon)
    later = str(round(time.time() * 1000) + 3_600_000)
    await send(client, run, "D", b"%s later" % name.encode(), TIMER_DELIVER_MS=later)
    await send(client, run, "D", b"%s level" % name.encode(), DELAY="1")
    half = await send(client, run, "D", b"%s half" % name.encode(), TRAN_MSG="true", PGROUP="pg")
    if half.code == ResponseCode.SUCCESS:
        end = {
            "producerGroup": "pg",
            "tranStateTableOffset": half.ext["queueOffset"],
            "commitLogOffset": str(int(half.ext["msgId"][16:], 16)),
            "commitOrRollback": "8",
            "fromTransactionCheck": "false",
            "msgId": "",
            "transactionId": "",
        }
        await ask(client, run, RequestCode.END_TRANSACTION, end)


async def commit_batch(app: AppBroker, run: Run) -> None:
    ledger = app.broker.batch_ledger
    body = encode_batch([(0, b"row", "")])
    put = ledger.chunks.prepare("q", 0, Chunk(0, 0, 0, 0, 0), Message("Rows", 0, body), 0)
    if put.ok:
        chunk = Chunk(0, 0, 0, put.physical_offset, put.size)
        try:
            await ledger.commit("q", 0, [chunk], 60_000)
        except (OSError, Refused) as error:
            run.told.append(str(error))


async def read(client: Client, run: Run) -> None:
    await ask(client, run, RequestCode.PULL_MESSAGE, pull_ext("T"))
    key = {"topic": "T", "key": b"first-03"[:12].hex(), "maxNum": "32"}
    key |= {"beginTimestamp": "0", "endTimestamp": str(2**62)}
    answer = await client.request(RequestCode.QUERY_MESSAGE, key)
    if answer.code != ResponseCode.SUCCESS:
        run.told.append(answer.remark or "")


async def patient(condition: Callable[[], bool]) -> None:
    with suppress(AssertionError):
        await until(condition, PATIENCE_S)


# --- what was said


def check_lines(name: str, lines: list[Any], run: Run) -> None:
    said: Counter[tuple[Any, ...]] = Counter()
    for line in lines:
        if line.get("exc_info"):
            run.problems.append(f"{name}: a traceback: {line['event']}: {line['exc_info']!r}")
        if line["log_level"] in ("error", "warning") and line["event"] not in REPEATED:
            said[tuple(line.get(each) for each in ("event", "path", "errno", "kind", "part"))] += 1
    run.problems += [
        f"{name}: said {count} times: {key}" for key, count in said.items() if count > 1
    ]


def is_told(case: Case | None, lines: list[Any], told: list[str]) -> bool:
    assert case is not None
    number = NUMBERS[case.fault]
    strerror = os.strerror(number).lower().removesuffix(" on device")  # we say where instead
    words = (strerror, errno.errorcode[number].lower())
    texts = [str(line) for line in lines if line["log_level"] != "info"] + told
    return any(word in text.lower() for text in texts for word in words)


# --- all of them


def find_sites() -> list[Site]:
    with tempfile.TemporaryDirectory() as folder:
        disk = SiteDisk()
        run = asyncio.run(run_script(Path(folder), disk))
        assert not run.problems, run.problems
        return sorted(disk.sites)


def cases(sites: list[Site], faults: Collection[str] = FAULTS) -> Iterator[Case]:
    for site, fault, for_ever in itertools.product(sites, faults, (False, True)):
        if fault != SHORT or site.call in WRITES:
            times = SLOW_TIMES if fault == SLOW else FOR_EVER
            yield Case(site, fault, times if for_ever else 1)


def try_case(case: Case) -> tuple[list[str], bool]:
    """What is wrong, and whether the script reached the site."""
    with tempfile.TemporaryDirectory() as folder:
        disk = SiteDisk(case)
        run = asyncio.run(run_script(Path(folder), disk))
        return run.problems, disk.raised > 0


def try_cases(chosen: list[Case]) -> Iterator[tuple[Case, tuple[list[str], bool]]]:
    slow = [case for case in chosen if case.fault == SLOW]
    for case in chosen:
        if case.fault != SLOW:
            yield case, try_case(case)
    with ProcessPoolExecutor(SLOW_AT_ONCE) as pool:
        yield from zip(slow, pool.map(try_case, slow), strict=True)


def main(arguments: list[str]) -> int:
    share = int(arguments[0]) if arguments else 1
    part = int(arguments[1]) if len(arguments) > 1 else 0
    faults = arguments[2:] or FAULTS
    started = time.monotonic()
    sites = find_sites()
    chosen = list(cases(sites, faults))[part::share]
    failed = missed = 0
    for case, (problems, was_met) in try_cases(chosen):
        missed += not was_met
        failed += bool(problems)
        if problems:
            print(f"FAILED {case}", *problems[:6], sep="\n    ", flush=True)
    print(
        f"{len(chosen)} faults ({', '.join(faults)}; once and for ever) at {len(sites)} call sites "
        f"({missed} not met): {failed} failed; {time.monotonic() - started:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
