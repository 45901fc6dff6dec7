"""Rounds of kills under load: a driver, and in the first rounds its worker and the broker too.

The next driver starts while one works, and waits for its turn: most of a round would otherwise be
Spark's start.
"""

from __future__ import annotations

import math
import random
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from peers.aerobee_broker import AerobeeBroker
from spark.helpers import numbers, produce, start_script
from spark.kills import kill_group, kill_worker, wait_until
from spark.warm import warm_config, warm_home

CHUNK = 10


class Load:
    """Sends numbered messages until the block ends."""

    def __init__(self, namesrv: str, topic: str, queues: int) -> None:
        self.sent = 0
        self._namesrv = namesrv
        self._topic = topic
        self._queues = queues
        self._stop = threading.Event()
        self.paused = threading.Lock()  # held while the broker is down: a message whose answer is
        self._thread = threading.Thread(target=self._run)  # lost would be sent twice

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            with self.paused:
                queue_id = self.sent // CHUNK % self._queues
                rows = numbers(CHUNK, self.sent)
                produce(self._namesrv, self._topic, rows, queue_id=queue_id)
                self.sent += CHUNK


class Killed(NamedTuple):
    """How many of each."""

    drivers: int
    others: int

    def __str__(self) -> str:
        others = f"{self.others} of a worker, {self.others} of the broker"
        return f"{self.drivers} kills of the driver, {others}"


@dataclass(frozen=True, slots=True)
class KillRounds:
    """Another driver takes its turn after each kill; a seed decides about the moments."""

    broker: AerobeeBroker
    drivers: Drivers
    folder: Path
    seed: int

    def run(
        self,
        kills: int,
        others: int,
        load: Load,
        progress: Callable[[], int],
        check: Callable[[], object],
        most: int,
        minutes: float = math.inf,
    ) -> Killed:
        """A driver is killed after progress of 1 to `most`, and `check` is called. No round starts
        after `minutes`."""
        chance = random.Random(self.seed)
        ends = time.monotonic() + 60 * minutes
        drivers: list[subprocess.Popen[str]] = []
        try:
            for n in range(kills):
                if time.monotonic() >= ends:
                    kills = n
                    break
                for number in range(n + len(drivers), min(n + 2, kills)):
                    drivers.append(self.drivers.wait_for(self._turn(number)))
                driver = drivers[0]
                more = progress() + chance.randint(1, most)
                self._turn(n).touch()
                wait_until(lambda more=more: progress() >= more, driver, 600)  # type: ignore[misc]
                if n < others:
                    self._kill_others(driver, load, chance)
                time.sleep(chance.random())
                ended = driver.poll() is not None
                output = kill_group(drivers.pop(0))
                assert not ended, output[-3000:]
                print(f"kill {n + 1}: {check()} of {load.sent}", flush=True)
        finally:
            for driver in drivers:
                kill_group(driver)
        return Killed(kills, min(kills, others))

    def _turn(self, number: int) -> Path:
        return self.folder / f"turn-{number}"

    def _kill_others(
        self, driver: subprocess.Popen[str], load: Load, chance: random.Random
    ) -> None:
        """A worker of the driver, and the broker."""
        time.sleep(chance.random())
        assert kill_worker(driver), "there was no worker to kill"
        with load.paused:
            self.broker.kill()
            time.sleep(chance.random())
            self.broker.start()


@dataclass(frozen=True, slots=True)
class Drivers:
    """Starts drivers of one kind, with the settings that all of them get."""

    script: Path
    settings: dict[str, Any]

    @classmethod
    def warm(cls, script: Path, settings: dict[str, Any]) -> Drivers:
        """Drivers that start quickly; the very first one is run to its end."""
        config = warm_config(
            script.stem, lambda config: complete(cls(script, settings | {"config": config}))
        )
        return cls(script, settings | {"config": config})

    def start(self, **more: Any) -> subprocess.Popen[str]:
        return start_script(self.script, self.settings | more, SPARK_HOME=warm_home())

    def wait_for(self, turn: Path) -> subprocess.Popen[str]:
        """A driver that waits until that file exists."""
        return self.start(turn=str(turn))


def complete(drivers: Drivers, **more: Any) -> None:
    """A driver that does all that is there and exits."""
    done = Path(drivers.settings["done"])
    done.touch()
    output, _ = drivers.start(**more).communicate(timeout=1200)
    assert "complete" in output, output[-3000:]
    done.unlink()
