"""What runs on a machine: an etcd member and a broker, whose disk can be full and whose clock can
jump."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from peers.aerobee_broker import AerobeeBroker
from peers.tools import wait_for

from ha.chaos.network import Network, address_of
from ha.etcd_server import is_healthy
from ha.processes import SIZES

DISK_MB = 192
AEROBEE = str(Path(sys.executable).with_name("aerobee"))


class Member:
    """Of etcd."""

    def __init__(self, folder: Path, number: int, count: int) -> None:
        self._folder = folder
        self._number = number
        self.url = f"http://{address_of(number)}:2379"
        self._members = ",".join(f"m{n}=http://{address_of(n)}:2380" for n in range(1, count + 1))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        peer = f"http://{address_of(self._number)}:2380"
        options = {
            "name": f"m{self._number}",
            "data-dir": self._folder / "data",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": self._members,
            "pre-vote": "true",  # as docs/replication.md asks for
            "log-level": "warn",  # elections, slow disks: why nothing is acknowledged
        }
        words = [f"--{key}={value}" for key, value in options.items()]
        inside = ["ip", "netns", "exec", Network.machine(self._number)]
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*inside, "etcd", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_healthy(self) -> None:
        wait_for(lambda: is_healthy(self.url), timeout=120, what="etcd answers")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Machine(AerobeeBroker):
    """A broker on its own disk, a tmpfs, with its own time of day."""

    def __init__(self, folder: Path, number: int, clock: Path, **settings: str) -> None:
        own = {
            "brokerId": str(number),
            "brokerIP1": address_of(number),
            "bindAddress": "0.0.0.0",
            "allowAnonymous": "true",
            "diskReservedBytes": "0",
            "cleanFileForciblyEnable": "false",  # a full disk removes no messages
        }
        super().__init__(folder, **SIZES | own | settings)
        self.number = number
        self._clock_library = clock
        self._clock = folder / "clock"
        self.store.mkdir(parents=True)
        self.set_clock(0)
        options = ("-t", "tmpfs", "-o", f"size={DISK_MB}m", "aerobee-chaos", str(self.store))
        subprocess.run(["mount", *options], check=True)

    def launch(self, *_command: str) -> None:
        inside = ("ip", "netns", "exec", Network.machine(self.number))
        clock = ("env", f"LD_PRELOAD={self._clock_library}", f"CHAOS_CLOCK={self._clock}")
        super().launch(*inside, *clock, AEROBEE)

    @property
    def broker(self) -> str:
        """Its address from outside; the ready line tells what it listens at."""
        return f"{address_of(self.number)}:{self._ports['listenPort']}"

    @broker.setter
    def broker(self, _listens_at: str) -> None: ...

    def set_clock(self, seconds: int) -> None:
        """Shift this machine's clock by `seconds`."""
        self._clock.write_text(f"{seconds:<20d}")

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def fill_disk(self) -> None:
        with (self.store / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))

    def free_disk(self) -> None:
        (self.store / "filler").unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.store)], check=False)


def build_clock(folder: Path) -> Path:
    """The library that shifts a process's time of day."""
    library = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library
