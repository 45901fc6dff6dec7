"""Power cuts of a whole machine: QEMU is killed under a kernel on which a broker works.

    python -m crash.powercut.machine 20 --seed 1        (in tests/, as root)

The machine has a disk of its own, an image with ext4, and reads all else from this one, over 9p.
Its kernel decides what has gone to the disk when the machine ends: what is only in its memory is
lost. After a cut the next machine's kernel recovers the file system, its broker the store, and all
that was answered before is looked for. The last time the disk is mounted here, and checked whole.

In SYNC_FLUSH only: there an answer says what is on the device.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from crash.powercut.check import Checker
from crash.powercut.disk import CannotMount, Cut, LoopDisk, check_possible
from crash.powercut.history import History, Totals, tally
from crash.powercut.images import check_image
from crash.powercut.load import SETTINGS, Load, make_topic
from peers.aerobee_broker import AerobeeBroker
from peers.apache import STORE_SIZES
from peers.tools import free_port
from peers.wire import Wire

PACKAGES: Final = "qemu-system-x86 busybox-static linux-image-amd64"
MODULES: Final = (
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "9pnet_virtio",
    "9p",
    "crc32c_generic",
    "ext4",
)
BOOTS_WITHIN: Final = 300.0  # seconds: every instruction is emulated
LOAD_S: Final = (1.0, 8.0)
LIVES: Final = 5  # cuts of one disk
SIZE: Final = 128 << 20
CLOCK_MS: Final = 2000  # a machine sets its clock at its start, to a second
PORT: Final = 10911
HOW: Final = {
    "flushDiskType": "SYNC_FLUSH",
    "metricsExporterType": "DISABLE",
    "bindAddress": "0.0.0.0",  # QEMU hands connections to an interface of the machine
    "allowAnonymous": "true",  # only this process reaches it
}

_INIT: Final = """#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
for module in $($B cat /modules/order); do $B insmod /modules/$module; done
$B mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host
$B mount -t tmpfs tmp /host/tmp; $B mount -t proc proc /host/proc; $B mount -o bind /dev /host/dev
$B mount -t ext4 /dev/vda /host/mnt
$B ip link set lo up; $B ip addr add 10.0.2.15/24 dev eth0; $B ip link set eth0 up
exec $B chroot /host {command}
"""


def initramfs(folder: Path, kernel: str, command: str) -> Path:
    """The first file system of the kernel: busybox, the modules it needs, and what to start."""
    root = folder / "initramfs"
    for name in ("bin", "modules", "proc", "sys", "dev", "host"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy("/bin/busybox", root / "bin" / "busybox")
    (root / "init").write_text(_INIT.format(command=command))
    (root / "init").chmod(0o755)
    order = []
    for path in _with_those_before(Path("/lib/modules") / kernel, MODULES):
        shutil.copy(path, root / "modules" / path.name)
        order.append(path.name)
    (root / "modules" / "order").write_text("\n".join(order))
    packed = folder / "initramfs.cpio"
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    with packed.open("wb") as out:
        pack = ["/bin/busybox", "cpio", "-o", "-H", "newc"]
        subprocess.run(pack, cwd=root, input=names.encode(), stdout=out, check=True)
    return packed


def _with_those_before(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of these modules, each after those that it needs."""
    needs = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        file, _, others = line.partition(":")
        needs[file] = others.split()
    by_name = {Path(file).name.partition(".")[0].replace("-", "_"): file for file in needs}

    def walk(file: str) -> Iterator[str]:
        for other in reversed(needs[file]):
            yield from walk(other)
        yield file

    # A module that is part of the kernel itself is in no file.
    files = [file for name in names if name in by_name for file in walk(by_name[name])]
    return [folder / file for file in dict.fromkeys(files)]


class Machine:
    """A kernel under QEMU whose first process is a broker; its disk is an image of ours."""

    def __init__(self, folder: Path, image: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / "machine.log"
        settings = STORE_SIZES | SETTINGS | HOW | {"storePathRootDir": "/mnt/store"}
        sets = " ".join(f"--set {key}={value}" for key, value in settings.items())
        command = f"{Path(sys.prefix) / 'bin' / 'aerobee'} broker {sets} --set listenPort={PORT}"
        kernel = max(Path("/boot").glob("vmlinuz-*"))
        release = kernel.name.removeprefix("vmlinuz-")
        port = self.address.rpartition(":")[2]
        self._argv = [
            *("qemu-system-x86_64", "-m", "1024", "-cpu", "max", "-nographic", "-no-reboot"),
            *("-kernel", str(kernel), "-initrd", str(initramfs(folder, release, command))),
            *("-append", "console=ttyS0 quiet panic=-1 rdinit=/init"),
            *("-drive", f"file={image},if=virtio,format=raw,cache=writeback"),
            *("-netdev", f"user,id=n,hostfwd=tcp:127.0.0.1:{port}-:{PORT}"),
            *("-device", "virtio-net-pci,netdev=n,romfile="),
            *("-fsdev", "local,id=h,path=/,security_model=none,readonly=on,multidevs=remap"),
            *("-device", "virtio-9p-pci,fsdev=h,mount_tag=host"),
        ]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> bool:
        """Whether its broker got ready; the log has what the machine printed."""
        with self.log.open("w") as errors:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
            )
        late = threading.Timer(BOOTS_WITHIN, self._process.kill)
        late.start()
        assert self._process.stdout is not None
        with self.log.open("a") as log:
            for line in self._process.stdout:
                log.write(line)
                if line.startswith("ready broker="):
                    late.cancel()
                    threading.Thread(target=self._drain, args=(self._process,)).start()
                    return True
        late.cancel()
        return False

    def _drain(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with self.log.open("a") as log:
            for line in process.stdout:
                log.write(line)

    def cut(self) -> Cut:
        """The machine ends; what its kernel has not written is lost."""
        assert self._process is not None
        before = time.monotonic()
        self._process.kill()
        self._process.wait()
        return Cut(before, time.monotonic())

    @property
    def is_on(self) -> bool:
        return self._process is not None and self._process.poll() is None


class Disk:
    """One image from its making to the delivery of all that was sent to it."""

    def __init__(self, folder: Path, totals: Totals, seed: str) -> None:
        self._disk = LoopDisk(folder, "ext4", SIZE)
        self._machine = Machine(folder, self._disk.image)
        self._here = AerobeeBroker(folder / "here", **SETTINGS, flushDiskType="SYNC_FLUSH")
        self._totals = totals
        self._history = History()
        self._checker = Checker(self._history, totals, CLOCK_MS)
        self._rng = random.Random(seed)

    def run(self, cuts: int) -> int:
        """As many cuts, less when something is wrong; how many there were."""
        self._totals.disks += 1
        self._disk.make()
        self._disk.unmount()
        done = 0
        try:
            while done < cuts and self._checker.clean:
                self._live()
                done += 1
        finally:
            if self._machine.is_on:
                self._machine.cut()
        if self._checker.clean:
            check_image(self._disk, self._here, self._checker, self._rng)
        self._totals.sent.update(sent.kind for sent in self._history.sent.values())
        return done

    def _live(self) -> None:
        began, address = time.monotonic(), self._machine.address
        if not self._machine.start():
            self._checker.wrong("no-start", self._machine.log.read_text()[-2500:])
            return
        self._totals.starts.append(time.monotonic() - began)
        if self._history.life == 0:
            with Wire(address, timeout=30) as wire:
                make_topic(wire)
        else:
            self._history.note_known()
            self._checker.after_start(address, self._rng, whole=True)
            self._history.read_at = time.monotonic()
        load = Load(address, self._history, self._rng)
        load.start()
        time.sleep(self._rng.uniform(*LOAD_S))
        deadline = time.monotonic() + 30
        while load.answered < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        cut = self._machine.cut()
        load.stop()
        load.join()
        self._history.note_cut(cut, cut.before, self._totals)
        self._totals.cuts["running"] += 1


def summary(totals: Totals, seconds: float, seed: int) -> str:
    return (
        f"{sum(totals.cuts.values())} machines ended under load, {totals.disks} disks, "
        f"{sum(totals.sent.values())} sent ({tally(totals.sent)}), {totals.acked} acknowledged, "
        f"{totals.seen} consumed; slowest start, kernel included, {totals.slowest_start:.0f} s; "
        f"violations: {tally(totals.violations)}; acknowledged while a machine ended "
        f"{totals.late}, of them lost {totals.late_lost}; {seconds:.0f} s, seed {seed}"
    )


def check_machine() -> None:
    """CannotMount when this machine lacks something."""
    check_possible("ext4")
    there = shutil.which("qemu-system-x86_64") and Path("/bin/busybox").exists()
    if not there or not any(Path("/boot").glob("vmlinuz-*")):
        raise CannotMount(f"a machine in QEMU needs a kernel and more: apt-get install {PACKAGES}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="crash.powercut.machine", description=__doc__)
    parser.add_argument("cuts", type=int)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    try:
        check_machine()
    except CannotMount as error:
        print(error, file=sys.stderr)
        return 2
    totals, began, done = Totals(), time.monotonic(), 0
    folder = Path(tempfile.mkdtemp(prefix="aerobee-machine-"))
    while done < given.cuts:
        disk = Disk(folder, totals, f"{given.seed}/{done}")
        done += disk.run(min(LIVES, given.cuts - done))
        print(summary(totals, time.monotonic() - began, given.seed), flush=True)
        if totals.violations:
            print(f"kept in {folder}: the machine's log and disk")
            return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
