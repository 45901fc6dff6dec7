"""Single bits of a store's files flipped:
`python -m crash.bit_flips N [SEED [SHARE PART [KIND...]]]`.

All of them, or one part of SHARE; PART counts from 0. The parts have no bit in common.

A folder with some of everything (messages with keys in several files, timers, delays, open
transactions, progress, a batch ledger, epochs) is made once, stopped in order and, a second one,
killed. For each flip one bit of one file is turned in a copy, a broker is started on it, and all
that it keeps is read as clients read it. No bit is turned twice: a kind that has fewer than N of
them is turned as a whole. What must hold:

- nothing wrong is served: a message that passes its reader's check is one that was sent, where it
  was sent to; nothing is delivered twice or early;
- what differs from the folder without the flip was seen: by `verify`, by a reader's check, by a
  line of the start's log, or by a start that is refused with a reason;
- no start fails by a mistake of ours.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from crash.flipped_store import STOPPED, Observed, Served, make_folder, observe
from crash.timer_lives import small_wheel
from structlog.testing import capture_logs

from aerobee.broker.net.listening import StartError
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.verify import verify

# Kind of file: where it is.
KINDS: Final = {
    "log": "commitlog/*",
    "queue": "consumequeue/*",
    "index": "index/*",
    "checkpoint": "checkpoint",
    "topics": "config/topics.json",
    "groups": "config/subscriptionGroup.json",
    "offsets": "config/consumerOffset.json",
    "delays": "config/delayOffset.json",
    "key-values": "config/kvConfig.json",
    "ledger": "config/sparkSink.json",
    "journal": "config/*.journal",
    "timer log": "timerlog/*",
    "wheel": "timerwheel",
    "timer check": "config/timercheck",
    "epochs": "epochFileCheckpoint",
    "role": "config/brokerRole.json",
}
HARMLESS, SEEN, REFUSED = "harmless", "seen", "refused"
SHARE: Final = 50  # flips of one task
Flip = tuple[str, str, int]  # how the folder ended, the file, the bit


@dataclass
class Template:
    """A folder without a flip, and what is read from it."""

    folder: Path
    observed: Observed
    verified: frozenset[str]  # the files that `verify` opens: others cannot change what it says

    @cached_property
    def _content(self) -> tuple[list[str], dict[str, bytes]]:
        paths = sorted(self.folder.rglob("*"))
        folders = [str(p.relative_to(self.folder)) for p in paths if p.is_dir()]
        return folders, {
            str(p.relative_to(self.folder)): p.read_bytes() for p in paths if p.is_file()
        }

    def copy_flipped(self, name: str, bit: int, work: Path) -> None:
        folders, files = self._content
        work.mkdir()
        for folder in folders:
            os.mkdir(f"{work}/{folder}")
        for each, data in files.items():
            with open(f"{work}/{each}", "wb", buffering=0) as file:
                file.write(flipped(data, bit) if each == name else data)

    def files(self, kind: str) -> list[str]:
        found = sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*"))
        return [
            name for name in found if fnmatch(name, KINDS[kind]) and (self.folder / name).is_file()
        ]


def make_templates(folder: Path, seed: int) -> dict[str, Template]:
    templates = {}
    for how in (STOPPED, "killed"):
        made = folder / how
        make_folder(made, how, random.Random(seed))
        work = folder / f"{how}-unflipped"
        shutil.copytree(made, work)
        with capture_logs() as lines:
            observed = observe(work)
        summary = [line for line in lines if line["log_level"] in ("warning", "error")]
        assert not summary, f"the folder without a flip is not clean: {summary}"
        assert not observed.unread, observed.unread
        templates[how] = Template(made, observed, verified_files(made))
        shutil.rmtree(work)
    return templates


def verified_files(folder: Path) -> frozenset[str]:
    opened: set[str] = set()
    listening = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:  # never removed: Python cannot
        if listening and event == "open":
            opened.add(str(arguments[0]))

    sys.addaudithook(hook)
    assert not verify_quietly(folder)
    listening = False
    return frozenset(os.path.relpath(name, folder) for name in opened if str(folder) in name)


def picked(
    templates: Mapping[str, Template], kind: str, count: int, rng: random.Random
) -> list[Flip]:
    """Bits of the kind's files, without repeats: one of ten behind the end of a file's content, the
    rest inside it, or all if there are fewer."""
    content, rest = [], []
    for how, template in templates.items():
        for name in template.files(kind):
            data = (template.folder / name).read_bytes()
            used = len(data.rstrip(b"\0"))
            content.append((how, name, range(used * 8)))
            rest.append((how, name, range(used * 8, len(data) * 8)))
    behind = sampled(rest, count // 10, rng)
    flips = sampled(content, count - len(behind), rng) + behind
    rng.shuffle(flips)
    return flips


def sampled(parts: Sequence[tuple[str, str, range]], count: int, rng: random.Random) -> list[Flip]:
    ends = list(accumulate(len(bits) for _, _, bits in parts))
    total = ends[-1] if ends else 0
    found = []
    for place in rng.sample(range(total), min(count, total)):
        which = bisect_right(ends, place)
        how, name, bits = parts[which]
        found.append((how, name, bits[place - ends[which]]))
    return found


def flipped(data: bytes, bit: int) -> bytes:
    turned = bytearray(data)
    turned[bit // 8] ^= 1 << bit % 8
    return bytes(turned)


def try_flip(template: Template, name: str, bit: int, work: Path) -> tuple[str, str]:
    """The outcome, and what is wrong with it, if anything."""
    template.copy_flipped(name, bit, work)
    try:
        found = verify_quietly(work) if name in template.verified else []
        try:
            with capture_logs() as lines:
                observed = observe(work, template.observed.keys)
        except (StartError, StoreError) as error:
            return REFUSED, "" if len(str(error)) > 20 else f"refused without a reason: {error}"
        except Exception as error:
            return "failed", f"the start failed: {type(error).__name__}: {error}"
        summary = [line for line in lines if line["log_level"] in ("warning", "error")]
        wrong = [problem for line in lines if (problem := traceback_of(line))]
        wrong += wrongly_served(template.observed, observed)
        if wrong:
            return "wrong", wrong[0]
        lost = differences(template.observed, observed)
        if not lost:
            return HARMLESS, ""
        if found or summary or observed.unread:
            return SEEN, ""
        return "unseen", lost[0]
    finally:
        shutil.rmtree(work)


def traceback_of(line: Any) -> str:
    return f"a traceback: {line['event']}: {line['exc_info']!r}" if line.get("exc_info") else ""


def verify_quietly(folder: Path) -> Sequence[object]:
    try:
        return verify(open_directory(str(folder)), lambda _: None).problems
    except StoreError as error:
        return [error]


def wrongly_served(before: Observed, after: Observed) -> Iterator[str]:
    for place, message in after.messages.items():
        if place in before.messages and before.messages[place] != message:
            yield f"{place}: {short(message)} is served, {short(before.messages[place])} was sent"
        elif place not in before.messages:
            yield f"{place}: {short(message)} is served, nothing was sent there"
    for body, count in (after.delivered - before.delivered).items():
        yield f"{body[:20]!r} was delivered {count} times more"
    yield from (f"{body!r} was delivered early" for body in after.early - before.early)


def short(message: Served) -> str:
    return f"{message.body[:24]!r}.. {message.properties[:60]!r}"


def differences(before: Observed, after: Observed) -> list[str]:
    found = [f"{place} is gone" for place in before.messages if place not in after.messages]
    found += [f"{body[:20]!r} never came" for body in before.delivered - after.delivered]
    return found + [
        f"{name}: {describe(before.state[name], after.state[name])}"
        for name in before.state
        if before.state[name] != after.state[name]
    ]


def describe(before: Any, after: Any) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                return f"{key}: {before.get(key)!r} became {after.get(key)!r}"
    return f"{before!r} became {after!r}"


# --- many of them

_templates: dict[str, Template] = {}
_work = Path()


def begin(folder: Path, templates: dict[str, Template]) -> None:
    global _work
    _templates.update(templates)
    _work = folder / f"work-{os.getpid()}"
    small_wheel().__enter__()


def run_share(task: tuple[str, Sequence[Flip]]) -> tuple[str, Counter[str], list[str]]:
    """Some flips of one kind."""
    kind, flips = task
    outcomes: Counter[str] = Counter()
    violations = []
    for how, name, bit in flips:
        outcome, problem = try_flip(_templates[how], name, bit, _work)
        outcomes[outcome] += 1
        if problem:
            violations.append(f"{outcome}: {how}, {name}, bit {bit}: {problem}")
    return kind, outcomes, violations


def run_flips(
    count: int,
    seed: int,
    kinds: Sequence[str],
    tell: Callable[[str], None],
    part: slice = slice(None),
) -> tuple[Counter[tuple[str, str]], list[str]]:
    folder = Path(tempfile.mkdtemp(prefix="aerobee-flips-", dir=memory_folder()))
    outcomes: Counter[tuple[str, str]] = Counter()
    violations: list[str] = []
    began = time.monotonic()
    try:
        with small_wheel(), capture_logs():
            templates = make_templates(folder, seed)
        tasks = [
            (share / len(flips), kind, flips[share : share + SHARE])
            for kind in kinds
            for flips in [picked(templates, kind, count, random.Random(f"{seed}/{kind}"))]
            for share in range(0, len(flips), SHARE)
        ]
        tasks.sort(key=lambda task: task[0])  # interleaves the kinds
        tasks = tasks[part]
        processes = min(len(os.sched_getaffinity(0)), len(tasks), 8)
        context = multiprocessing.get_context("spawn")
        with context.Pool(processes, begin, (folder, templates)) as pool:
            shares = pool.imap_unordered(run_share, [task[1:] for task in tasks])
            for number, (kind, found, problems) in enumerate(shares, 1):
                outcomes.update({(kind, outcome): n for outcome, n in found.items()})
                violations += problems
                for text in problems:
                    tell(f"VIOLATION {text}")
                if number % 40 == 0:
                    seconds = time.monotonic() - began
                    tell(
                        f"{number * 100 // len(tasks)} %: {summary(outcomes, violations, seconds)}"
                    )
    finally:
        shutil.rmtree(folder)
    return outcomes, violations


def summary(outcomes: Counter[tuple[str, str]], violations: Sequence[str], seconds: float) -> str:
    totals: Counter[str] = Counter()
    for (_, outcome), n in outcomes.items():
        totals[outcome] += n
    return (
        f"{totals.total():,} flips in {len({kind for kind, _ in outcomes})} kinds of files: "
        f"{totals[HARMLESS]:,} without effect, {totals[SEEN]:,} seen, {totals[REFUSED]:,} starts "
        f"refused; violations: {len(violations)} ({totals['wrong']} served wrong, "
        f"{totals['unseen']} unseen, {totals['failed']} failed starts); {seconds:.0f} s"
    )


def memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main(arguments: Sequence[str]) -> int:
    count = int(arguments[0]) if arguments else 200
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    part = slice(int(arguments[3]), None, int(arguments[2])) if len(arguments) > 3 else slice(None)
    kinds = arguments[4:] or list(KINDS)
    began = time.monotonic()
    outcomes, violations = run_flips(count, seed, kinds, partial(print, flush=True), part)
    for kind in kinds:
        mine = {outcome: n for (of, outcome), n in sorted(outcomes.items()) if of == kind}
        told_of = ", ".join(f"{n} {outcome}" for outcome, n in mine.items())
        print(f"{kind:12} {sum(mine.values())}: {told_of}")
    print(f"{summary(outcomes, violations, time.monotonic() - began)}, seed {seed}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
