"""`make bench-replicas`: a master and a slave of Aerobee beside a pair of Apache RocketMQ 4.9.

The two kinds run one after the other, never at once: master, slave and load client share the
machine. A master alone and one with a slave get short bursts in turns, so that what a slave costs
is the median of many differences: first beside a SYNC_MASTER, then beside an ASYNC_MASTER, whose
slave is then stopped, falls behind and catches up. With etcd on PATH, masters are killed under our
SDK.

    python -m bench.replicas [--pairs 3] [--quick] [--only aerobee] [--out bench/results]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ha.failover_cluster import Cluster
from ha.processes import TOPIC
from peers.wire import Wire

from aerobee import connect
from bench.brokers import AEROBEE, APACHE_4, BrokerProcess
from bench.load_client import SOURCE, compiled, drive_of, load
from bench.machine import describe_machine, warm_memory
from bench.process import need
from bench.session import Figures, Session
from bench.tables import Runs, median, table
from bench.wire import first_send

LOOK_S = 0.01
DISPATCH_LOOK_S = 0.05  # not more often: each question is a part of the slave's CPU
LEASE_S = 3  # failoverLease as it is by default
WAIT_S = 120
GIB = 1 << 30
Bursts = Runs  # role -> figure -> one value per burst


@dataclass(frozen=True)
class Scale:
    warm_up: int
    bursts: int  # of each row, with and without a slave
    sends: int  # in a burst
    round_trips: int  # in a burst
    behind: int  # messages that the slave lacks when it starts again
    kills: int


FULL_SCALE = Scale(150_000, 7, 60_000, 2_500, 700_000, 5)
QUICK_SCALE = Scale(10_000, 2, 5_000, 300, 50_000, 1)
ONE = {"conns": 1, "window": 1}
ALONE = "alone"
BESIDE = "beside a process as busy as a slave"  # but without a link to it
NEIGHBOUR_SOURCE = SOURCE.with_name("neighbour.c")
PIECE_KB, PIECES_PER_S = 385, 700  # what a slave writes at such a rate
# figure -> bursts of which role, beside what
TAIL_COSTS = (
    ("master's CPU s/GiB for a slave, at the tail", "ASYNC_MASTER", ALONE),
    (f"master's CPU s/GiB {BESIDE}", BESIDE, ALONE),
    ("master's CPU s/GiB for a slave, more than that", "ASYNC_MASTER", BESIDE),
)


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
    """A master and a slave that has caught up."""
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


def wait(condition: Callable[[], bool], what: str, look_s: float = LOOK_S) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"not within {WAIT_S} s: {what}")
        time.sleep(look_s)


def in_step(master: Replica, slave: Replica) -> None:
    end = master.log_end()
    wait(lambda: slave.log_end() >= end, "the slave has what its master has")


@contextmanager
def beside_alone(
    kind: str, folder: Path, scale: Scale, role: str
) -> Iterator[tuple[dict[str, Session], Replica]]:
    """Sessions with a master alone and with one of this role, whose slave it is; all warm."""
    with (
        master_alone(kind, folder / ALONE, "ASYNC_MASTER") as alone,
        pair(kind, folder / "pair", role) as (master, slave),
    ):
        for broker in alone, master:
            load("send", broker.port, topic="WarmUp", n=scale.warm_up)
        yield (
            {ALONE: Session(alone, drive_of(alone)), role: Session(master, drive_of(master))},
            slave,
        )


@contextmanager
def neighbour(folder: Path, share: float) -> Iterator[None]:
    """A process that writes as a slave does and takes this share of a core."""
    file = folder / "neighbour"
    words = [str(PIECE_KB), str(round(share * 1e6)), str(PIECES_PER_S)]
    process = subprocess.Popen([compiled(NEIGHBOUR_SOURCE), file, *words])
    try:
        yield
    finally:
        process.kill()
        process.wait()
        file.unlink(missing_ok=True)


def in_turns(
    sessions: dict[str, Session], slave: Replica, bursts: int, row: str, n: int, **options: object
) -> Bursts:
    """Bursts of sends to each in turns, with the slave's share until it has dispatched all. What
    the burst has stored is counted afterwards: the slave has no part in that."""
    found: Bursts = {}
    share = 0.0  # of a core, that the slave took last
    for number in range(bursts):
        for role in reversed(sessions) if number % 2 == 0 else sessions:
            session = sessions[role]
            assert isinstance(session.server, Replica)
            begin, used = session.server.log_end(), slave.cpu_seconds()
            beside = neighbour(slave.folder.parent, share) if role == BESIDE else nullcontext()
            with beside:
                topic, acknowledged = session.burst(row, n, **options)
            figures = {name.removeprefix(f"{row}: "): of for name, of in session.figures.items()}
            session.figures.clear()
            if role not in (ALONE, BESIDE):
                end = session.server.log_end()
                wait_dispatched(slave, end)
                figures["slave's CPU us/msg"] = (slave.cpu_seconds() - used) / n * 1e6
                share = figures["slave's CPU us/msg"] / 1e6 * figures["msg/s"]
                of_master = figures["slave's CPU us/msg"] / figures["CPU us/msg"]
                figures["slave's CPU, % of master's"] = of_master * 100
                figures["bytes/msg"] = (end - begin) / n
            session.expect_stored(topic, acknowledged, **options)
            for name, value in figures.items():
                found.setdefault(role, {}).setdefault(name, []).append(value)
    return found


def wait_dispatched(slave: Replica, end: int) -> None:
    """It dispatches a moment after the last record: do not ask before."""
    time.sleep(DISPATCH_LOOK_S)
    wait(lambda: slave.dispatched() >= end, "the slave has dispatched it", DISPATCH_LOOK_S)


def medians(row: str, found: Bursts) -> Figures:
    return {
        f"{role}: {row}: {name}": median(found, role, name)
        for role, figures in found.items()
        for name in figures
    }


def added(found: Bursts, role: str, name: str, base: str = ALONE) -> float:
    """What a slave adds to a figure."""
    pairs = zip(found[role][name], found[base][name], strict=True)
    return statistics.median([with_slave - without for with_slave, without in pairs])


def sync_session(kind: str, folder: Path, scale: Scale) -> Figures:
    role, figures = "SYNC_MASTER", Figures()
    with beside_alone(kind, folder, scale, role) as (sessions, slave):
        many = in_turns(sessions, slave, scale.bursts, "send 4x32", scale.sends)
        figures |= medians("send 4x32", many)
        for row, polls in ("send 1x1", 0), ("send 1x1, client polls", 1):
            options = ONE | {"polls": polls}
            found = in_turns(sessions, slave, scale.bursts, row, scale.round_trips, **options)
            figures |= medians(row, found)
            for name in "p50 us", "p99 us":
                figures[f"added by one slave, {row[5:]}: {name}"] = added(found, role, name)
    rates = (median(many, one, "msg/s") for one in (role, ALONE))
    figures["SYNC_MASTER's rate, % of alone"] = 100 * next(rates) / next(rates)
    return figures


def async_session(kind: str, folder: Path, scale: Scale) -> Figures:
    role, figures = "ASYNC_MASTER", Figures()
    with beside_alone(kind, folder, scale, role) as (sessions, slave):
        alone = sessions[ALONE]
        beside = Session(alone.server, alone.drive, topics="Beside")
        all_sessions = {ALONE: alone, BESIDE: beside, role: sessions[role]}
        found = in_turns(all_sessions, slave, scale.bursts, "send 4x32", scale.sends)
        gib_us = 1e6 * median(found, role, "bytes/msg") / GIB
        for name, one, base in TAIL_COSTS:
            figures[name] = added(found, one, "CPU us/msg", base) / gib_us
        figures |= medians("send 4x32", {role: found[role]})
        master = sessions[role].server
        assert isinstance(master, Replica)
        slave.stop()
        load("send", master.port, topic="Behind", n=scale.behind)
        return figures | _catch_up(master, slave)


def failover_session(kind: str, folder: Path, scale: Scale) -> Figures:
    """From kill -9 of a master to the next send that our SDK has an answer to."""
    if kind != AEROBEE or shutil.which("etcd") is None:
        return {}
    took = asyncio.run(kill_masters(folder, scale.kills))
    shutil.rmtree(folder, ignore_errors=True)
    name = "kill -9 of the master to SEND_OK, our SDK: s"
    return {name: statistics.median(took), f"{name}, longest": max(took)}


async def kill_masters(folder: Path, kills: int) -> list[float]:
    took = []
    with Cluster(folder, 2) as cluster:
        cluster.name_each_other()
        names = ",".join(broker.namesrv for broker in cluster.brokers.values())
        async with connect(f"mq://{names}") as mq:
            for _ in range(kills):
                master = await asyncio.to_thread(cluster.wait_in_sync, *cluster.brokers)
                await mq.send(TOPIC, b"before", timeout=60)
                began = time.perf_counter()
                cluster.brokers[master].kill()
                await mq.send(TOPIC, b"after", timeout=60)
                took.append(time.perf_counter() - began)
                await asyncio.to_thread(cluster.brokers[master].start)
    return took


def _catch_up(master: Replica, slave: Replica) -> Figures:
    """From the first byte that the slave gets to the last; Java's reports 5 s after it dialled."""
    end, cpu = master.log_end(), master.cpu_seconds()
    with warm_memory(2 << 30):
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


SESSIONS = {
    "SYNC_MASTER": sync_session,
    "ASYNC_MASTER": async_session,
    "failover": failover_session,
}

# figure -> what to hold beside Apache's (ratio) or on its own (absolute), and the goal
GOALS: dict[str, tuple[str, float, bool]] = {
    "SYNC_MASTER: send 4x32: msg/s": (">=", 3.0, True),
    "added by one slave, 1x1: p50 us": ("<=", 0.5, True),
    "added by one slave, 1x1: p99 us": ("<=", 0.5, True),
    "master's CPU s/GiB for a slave, at the tail": ("<=", 0.35, False),
    "catch-up: master's CPU s/GiB": ("<=", 0.35, False),
    "SYNC_MASTER: send 4x32: slave's CPU, % of master's": ("<=", 40, False),
    "ASYNC_MASTER: send 4x32: slave's CPU, % of master's": ("<=", 40, False),
    "catch-up: MB/s": (">=", 400, False),
    "kill -9 of the master to SEND_OK, our SDK: s, longest": ("<=", LEASE_S + 1.5, False),
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
            for figure, value in found.items():
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
    head = (
        f"{describe_machine()}. {about}. {options.pairs} rounds of "
        f"{scale.bursts} bursts each, 1 KB bodies."
    )
    text = f"{head}\n\n{table(runs, kinds, columns)}\n"
    print(f"\n{text}")
    if kinds == [AEROBEE, APACHE_4]:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / ("replicas" + "-quick" * options.quick + ".md")
        path.write_text(text)
        print(f"written: {path}")


if __name__ == "__main__":
    main()
