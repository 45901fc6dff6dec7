"""`make bench-compare PEERS=1`: Aerobee beside other kinds of brokers, at equal durability.

One server at a time, in rounds of alternating order, each with a client that its own users would
use; every acknowledgement is checked, and after each row of sends what is stored is counted.

    python -m bench.peers [--only nats,kafka,redis] [--rounds 3] [--quick] [--out bench/results]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from bench.machine import describe_machine
from bench.peers.aerobee import AerobeeByC, AerobeeByJava
from bench.peers.base import Peer
from bench.peers.kafka import Kafka
from bench.peers.nats import Nats
from bench.peers.redis import Redis
from bench.rows import FULL_SCALE, QUICK_SCALE, Scale
from bench.session import Figures, Session
from bench.tables import Runs, table

PEERS: dict[str, type[Peer]] = {"nats": Nats, "kafka": Kafka, "redis": Redis}


def unflushed_rows(peer: Peer, session: Session, scale: Scale) -> None:
    session.figures["start to first message: ms"] = peer.start() * 1000
    peer.run("send", topic="WarmUp", n=scale.warm_up)
    topic = session.send("send 4x32, 1 KB", scale.sends)
    session.send("send 1x1, 1 KB", scale.round_trips, conns=1, window=1)
    session.pull("pull 32, 1 KB", topic, scale.pulls, 32)
    session.pull("pull 4096, 1 KB", topic, scale.pulls, 4096)
    session.memory()


def flushed_rows(peer: Peer, session: Session, scale: Scale) -> None:
    sends = scale.sync_sends // peer.flushed_part
    peer.start()
    peer.run("send", topic="WarmUp", n=sends // 2, conns=8)
    session.send("flushed: send 8x32, 1 KB", sends, conns=8)
    session.send("flushed: send 1x1, 1 KB", scale.sync_sends // 10, conns=1, window=1)


def measure(kind: type[Peer], folder: Path, scale: Scale, *, sync: bool) -> tuple[str, Figures]:
    """What the server is, and its rows of one flush mode in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    peer = kind(folder, sync=sync)
    try:
        session = Session(peer, peer.run)
        (flushed_rows if sync else unflushed_rows)(peer, session, scale)
    finally:
        peer.close()
        shutil.rmtree(folder, ignore_errors=True)
    # With many in flight, clients differ in what they measure as a latency.
    latencies = (" p50 us", " p99 us")
    return peer.describe(), {
        name: value
        for name, value in session.figures.items()
        if "1x1" in name or not name.endswith(latencies)
    }


def measure_all(
    kinds: list[type[Peer]], rounds: int, scale: Scale, work: Path
) -> tuple[dict[str, str], Runs]:
    """The version of each server, and its figures."""
    versions: dict[str, str] = {}
    runs: Runs = {kind.title: {} for kind in kinds}
    for number in range(rounds):
        for sync in (False, True):
            for kind in kinds if number % 2 == 0 else kinds[::-1]:
                mode = kind.flushed if sync else kind.unflushed
                print(f"round {number + 1} of {rounds}: {kind.title}, {mode}", flush=True)
                versions[kind.title], figures = measure(kind, work / "server", scale, sync=sync)
                for name, value in figures.items():
                    runs[kind.title].setdefault(name, []).append(value)
    return versions, runs


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(PEERS), help="which, by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the program out")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        parser.error(f"{', '.join(unknown)}: unknown; {', '.join(PEERS)} are known")
    kinds: list[type[Peer]] = [AerobeeByC, AerobeeByJava, *(PEERS[name] for name in names)]
    for kind in kinds:
        try:
            kind.prepare()
        except SystemExit as missing:
            parser.error(f"{kind.title}: {missing}; or choose the peers, as PEERS=nats,kafka")
    scale = QUICK_SCALE if options.quick else FULL_SCALE
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as work:
        versions, runs = measure_all(kinds, options.rounds, scale, Path(work))
    servers = {
        kind.title: {
            "version": versions[kind.title],
            "driven by": kind.client,
            "flush": kind.unflushed,
            "flush in the rows called flushed": kind.flushed,
        }
        for kind in kinds
    }
    result = {"machine": describe_machine(), "rounds": options.rounds, "servers": servers}
    page = (
        f"{result['machine']}; {options.rounds} rounds, medians (ranges).\n\n"
        f"{legend(servers)}\n\n{table(runs, list(servers))}\n"
    )
    name = "peers-quick" if options.quick else "peers"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.json").write_text(json.dumps(result | {"runs": runs}, indent=1) + "\n")
    (options.out / f"{name}.md").write_text(page)
    print(f"\n{page}\nwritten: {options.out}/{name}.json and .md")


def legend(servers: dict[str, dict[str, str]]) -> str:
    """Which version, which client and which settings stand behind each column."""
    columns = list(next(iter(servers.values())))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(facts.values()) + " |" for name, facts in servers.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
