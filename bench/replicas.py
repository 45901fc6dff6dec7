"""`make bench-replicas`: a master and a slave of Aerobee beside a pair of Apache RocketMQ 4.9.

Pairs run one after the other, never at once: master, slave and load client share the machine. Each
round has a master alone, a SYNC_MASTER with a slave, and an ASYNC_MASTER whose slave is stopped,
falls behind and catches up.

    python -m bench.replicas [--pairs 3] [--quick] [--only aerobee] [--out bench/results]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from peers.wire import Wire

from bench.brokers import AEROBEE, APACHE_4, BrokerProcess
from bench.load_client import drive_of, load
from bench.machine import describe_machine
from bench.process import need
from bench.session import Figures, Session
from bench.tables import Runs, median, table
from bench.wire import first_send

LOOK_S = 0.01
WAIT_S = 120
GIB = 1 << 30


@dataclass(frozen=True)
class Scale:
    warm_up: int
    sends: int
    round_trips: int
    behind: int  # messages that the slave lacks when it starts again


FULL_SCALE = Scale(150_000, 150_000, 10_000, 700_000)
QUICK_SCALE = Scale(10_000, 10_000, 1_000, 50_000)


class Replica(BrokerProcess):
    """A broker that is up when it answers: a slave takes no messages, a SYNC_MASTER without one
    does not answer them with success."""

    def accepts(self) -> bool:
        try:
            return bool(self._facts())
        except OSError:
            return False

    def _facts(self) -> dict[str, str]:
        with Wire(f"127.0.0.1:{self.port}", timeout=20) as wire:
            answer = wire.request(28, {})
            return dict(json.loads(answer.body)["table"]) if answer.code == 0 else {}

    def log_end(self) -> int:
        return int(self._facts()["commitLogMaxOffset"])

    def dispatched(self) -> int:
        facts = self._facts()
        return int(facts["commitLogMaxOffset"]) - int(facts.get("dispatchBehindBytes", 0))


@contextmanager
def master_alone(kind: str, folder: Path, role: str) -> Iterator[Replica]:
    shutil.rmtree(folder, ignore_errors=True)
    master = Replica(kind, folder / "master", brokerName="pair", brokerRole=role)
    try:
        master.start()
        yield master
    finally:
        master.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def pair(kind: str, folder: Path, role: str) -> Iterator[tuple[Replica, Replica]]:
    """A master and its slave, in step."""
    with master_alone(kind, folder, role) as master:
        names = f"127.0.0.1:{master.namesrv_port}"
        told = {"brokerRole": "SLAVE", "brokerId": "1", "namesrvAddr": names}
        slave = Replica(kind, folder / "slave", brokerName="pair", **told)
        try:
            slave.start()
            wait(lambda: first_send(master.port), "a send is answered with success")
            in_step(master, slave)
            yield master, slave
        finally:
            slave.kill()


def wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"not within {WAIT_S} s: {what}")
        time.sleep(LOOK_S)


def in_step(master: Replica, slave: Replica) -> None:
    end = master.log_end()
    wait(lambda: slave.log_end() >= end, "the slave has what its master has")


def alone_session(kind: str, folder: Path, scale: Scale) -> Figures:
    with master_alone(kind, folder, "ASYNC_MASTER") as master:
        session = Session(master, drive_of(master), prefix="alone: ")
        load("send", master.port, topic="WarmUp", n=scale.warm_up)
        _rows(session, scale)
        return session.figures


def _rows(session: Session, scale: Scale) -> None:
    one = {"conns": 1, "window": 1}
    session.send("send 4x32", scale.sends)
    session.send("send 1x1", scale.round_trips, **one)
    session.send("send 1x1, client polls", scale.round_trips, polls=1, **one)


def sync_session(kind: str, folder: Path, scale: Scale) -> Figures:
    with pair(kind, folder, "SYNC_MASTER") as (master, slave):
        session = Session(master, drive_of(master), prefix="SYNC_MASTER: ")
        load("send", master.port, topic="WarmUp", n=scale.warm_up)
        _rows(session, scale)
        _slave_row(session, slave, "SYNC_MASTER: send 4x32 again", scale)
        return session.figures


def _slave_row(session: Session, slave: Replica, row: str, scale: Scale) -> None:
    """Sends, with the slave's share of the work until it has dispatched all of it."""
    assert isinstance(session.server, Replica)
    before, end = slave.cpu_seconds(), session.server.log_end()
    name = row.partition(": ")[2]
    session.send(name, scale.sends)
    in_step(session.server, slave)
    used = (slave.cpu_seconds() - before) / scale.sends * 1e6
    session.figures[f"{row}: slave's CPU us/msg"] = used
    master = session.figures[f"{row}: CPU us/msg"]
    session.figures[f"{row}: slave's CPU, % of master's"] = used / master * 100
    size = (session.server.log_end() - end) / scale.sends
    session.figures[f"{row}: bytes/msg"] = size


def async_session(kind: str, folder: Path, scale: Scale) -> Figures:
    with pair(kind, folder, "ASYNC_MASTER") as (master, slave):
        session = Session(master, drive_of(master), prefix="ASYNC_MASTER: ")
        load("send", master.port, topic="WarmUp", n=scale.warm_up)
        _slave_row(session, slave, "ASYNC_MASTER: send 4x32", scale)
        in_step(master, slave)
        slave.stop()
        load("send", master.port, topic="Behind", n=scale.behind)
        return session.figures | _catch_up(master, slave)


def _catch_up(master: Replica, slave: Replica) -> Figures:
    """From the first byte that the slave gets to the last; Java's reports 5 s after it dialled."""
    end, cpu = master.log_end(), master.cpu_seconds()
    slave.start()
    start = last = slave.log_end()
    began, slave_cpu = time.perf_counter(), slave.cpu_seconds()
    while last < end:
        last = slave.log_end()
        if last == start:  # it has not begun
            began, slave_cpu = time.perf_counter(), slave.cpu_seconds()
        time.sleep(LOOK_S)
    took = time.perf_counter() - began
    wait(lambda: slave.dispatched() >= end, "the slave has dispatched it")
    behind = time.perf_counter() - began - took
    size = end - start
    return {
        "catch-up: MB": size / 1e6,
        "catch-up: MB/s": size / 1e6 / took,
        "catch-up: dispatch behind ms": behind * 1000,
        "catch-up: master's CPU s/GiB": (master.cpu_seconds() - cpu) / size * GIB,
        "catch-up: slave's CPU s/GiB": (slave.cpu_seconds() - slave_cpu) / size * GIB,
    }


SESSIONS = {"alone": alone_session, "SYNC_MASTER": sync_session, "ASYNC_MASTER": async_session}


def derive(found: Figures) -> Figures:
    """What one replica costs: beside the same master alone, in the same round."""
    sync, alone, pair_ = "SYNC_MASTER: send", "alone: send", "ASYNC_MASTER: send 4x32"
    more = {
        f"added by one slave, {how}: {name} us": found[f"{sync} {how}: {name} us"]
        - found[f"{alone} {how}: {name} us"]
        for how in ("1x1", "1x1, client polls")
        for name in ("p50", "p99")
    }
    added = found[f"{pair_}: CPU us/msg"] - found[f"{alone} 4x32: CPU us/msg"]
    more["master's CPU s/GiB for a slave, at the tail"] = (
        added / 1e6 * GIB / found[f"{pair_}: bytes/msg"]
    )
    share = found[f"{sync} 4x32: msg/s"] / found[f"{alone} 4x32: msg/s"]
    more["SYNC_MASTER's rate, % of alone"] = share * 100
    return found | more


# figure -> what to hold beside Apache's (ratio) or by itself (absolute), and the goal
GOALS: dict[str, tuple[str, float, bool]] = {
    "SYNC_MASTER: send 4x32: msg/s": (">=", 3.0, True),
    "added by one slave, 1x1: p50 us": ("<=", 0.5, True),
    "added by one slave, 1x1: p99 us": ("<=", 0.5, True),
    "master's CPU s/GiB for a slave, at the tail": ("<=", 0.35, False),
    "catch-up: master's CPU s/GiB": ("<=", 0.35, False),
    "SYNC_MASTER: send 4x32 again: slave's CPU, % of master's": ("<=", 40, False),
    "ASYNC_MASTER: send 4x32: slave's CPU, % of master's": ("<=", 40, False),
    "catch-up: MB/s": (">=", 400, False),
}


def verdict(runs: Runs, name: str) -> str:
    if name not in GOALS:
        return ""
    sign, wanted, is_ratio = GOALS[name]
    value = median(runs, AEROBEE, name)
    if is_ratio:
        if APACHE_4 not in runs:
            return ""
        value /= median(runs, APACHE_4, name)
    met = value >= wanted if sign == ">=" else value <= wanted
    return f"{sign} {wanted:g}{' x Apache' * is_ratio}: {'met' if met else 'MISSED'}"


def measure(kinds: list[str], pairs: int, scale: Scale, work: Path) -> Runs:
    runs: Runs = {kind: {} for kind in kinds}
    for number in range(pairs):
        for kind in kinds if number % 2 == 0 else kinds[::-1]:
            found: Figures = {}
            for name, session in SESSIONS.items():
                print(f"round {number + 1} of {pairs}: {kind}, {name}", flush=True)
                found |= session(kind, work / kind, scale)
            for figure, value in derive(found).items():
                runs[kind].setdefault(figure, []).append(value)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the program out")
    parser.add_argument("--only", choices=[AEROBEE, APACHE_4], help="one kind alone")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args()
    kinds = [options.only] if options.only else [AEROBEE, APACHE_4]
    need("cc=gcc", *(["java=openjdk-17-jdk-headless", "mvn=maven"] if APACHE_4 in kinds else []))
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as work:
        about = "; ".join(BrokerProcess(kind, Path(work)).describe() for kind in kinds)
        scale = QUICK_SCALE if options.quick else FULL_SCALE
        runs = measure(kinds, options.pairs, scale, Path(work))
    columns = {"goal": lambda name: verdict(runs, name)} if AEROBEE in kinds else {}
    head = f"{describe_machine()}. {about}. {options.pairs} rounds, 1 KB bodies."
    text = f"{head}\n\n{table(runs, kinds, columns)}\n"
    print(f"\n{text}")
    if kinds == [AEROBEE, APACHE_4]:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / ("replicas" + "-quick" * options.quick + ".md")
        path.write_text(text)
        print(f"written: {path}")


if __name__ == "__main__":
    main()
