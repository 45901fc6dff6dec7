"""Podman for tests: a stand-in for the base image, builds, runs and a host of its own outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from peers.tools import need
from system.tools import need_root_and, run

ROOT = Path(__file__).resolve().parents[2]
BASE_IMAGE = "docker.io/library/python:3.12-slim"
IMAGE = "localhost/aerobee:test"
ETCD = "quay.io/coreos/etcd:v3.5.21"
ETCD_STAND_IN = "localhost/aerobee-etcd:test"

_CONFIG = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def need_podman() -> None:
    need_root_and("podman runc mmdebstrap iproute2", "podman", "runc", "mmdebstrap", "ip")


def use_config(folder: Path) -> None:
    config = folder / "containers.conf"
    config.write_text(_CONFIG)
    os.environ["CONTAINERS_CONF"] = str(config)


def podman(*words: object, timeout: float = 300, check: bool = True) -> str:
    return run("podman", *words, timeout=timeout, check=check)


def make_base_image(folder: Path) -> None:
    """A Debian with Python under the name of the Dockerfile's base: it only stands in for it."""
    if podman("image", "exists", BASE_IMAGE, check=False) == "" and _exists(BASE_IMAGE):
        return
    root = folder / "base"
    packages = "python3,python3-venv,ca-certificates"
    run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", "bookworm", root)
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        shutil.copy(certificates, root / "etc/ssl/certs/ca-certificates.crt")
    archive = folder / "base.tar"
    run("tar", "-C", root, "--numeric-owner", "-cf", archive, ".")
    change = "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt"
    podman("import", "-q", "--change", change, archive, BASE_IMAGE)
    shutil.rmtree(root)
    archive.unlink()


def _exists(image: str) -> bool:
    return subprocess.run(["podman", "image", "exists", image]).returncode == 0


def build_image(folder: Path) -> None:
    """The project's Dockerfile, from a fresh clone."""
    source = folder / "source"
    run("git", "clone", "-q", ROOT, source)
    options = ("--pull=never", "--network=host", "--format", "docker")
    podman("build", "-q", *options, "-t", IMAGE, source, timeout=600)


@contextmanager
def etcd_image() -> Iterator[None]:
    """This machine's etcd on the base image: it stands in for etcd's own."""
    found = shutil.which("etcd")
    need(found is not None, "etcd not found on PATH; apt-get install etcd-server")
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(found, Path(folder) / "etcd")
        (Path(folder) / "Dockerfile").write_text(
            f"FROM {BASE_IMAGE}\nCOPY etcd /usr/local/bin/etcd\n"
        )
        podman("build", "-q", "--pull=never", "-t", ETCD_STAND_IN, folder)
    yield
    podman("rmi", "-f", ETCD_STAND_IN, check=False)


class Composed:
    """The services of a compose file, started by podman as the file says: there is no compose here.
    Names are given addresses, as there is no DNS between these containers either."""

    network = "aerobee-composed"
    subnet = "10.89.252"

    def __init__(self, file: Path, images: dict[str, str]) -> None:
        """`images`: what to take for those that the file names."""
        self._file = yaml.safe_load(file.read_text())
        self._services = self._file["services"]
        self._images = images
        self._volumes = [f"{self.network}-{name}" for name in self._file["volumes"]]
        hosts = {name: f"{self.subnet}.{n}" for n, name in enumerate(self._services, 10)}
        self._addresses = hosts
        self._hosts = [word for n, a in hosts.items() for word in ("--add-host", f"{n}:{a}")]

    def __enter__(self) -> Composed:
        self.remove()
        podman("network", "create", "--subnet", f"{self.subnet}.0/24", self.network)
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        for name in self._services:
            podman("rm", "-f", "-v", "-t", "1", self.container(name), check=False)
        podman("volume", "rm", "-f", *self._volumes, check=False)
        podman("network", "rm", "-f", self.network, check=False)

    def up(self, *names: str) -> None:
        for name in names:
            command = self._services[name].get("command", [])
            words = ("--name", self.container(name), *self._options(name), self._image(name))
            podman("run", "-d", *words, *command)

    def container(self, name: str) -> str:
        """The container of this service, by a name that no other container has."""
        return f"{self.network}-{name}"

    def run(self, name: str, *words: str, check: bool = True) -> str:
        """`compose run --rm name words`."""
        return podman("run", "--rm", *self._options(name), self._image(name), *words, check=check)

    def _image(self, name: str) -> str:
        return self._images[self._services[name]["image"]]

    def _options(self, name: str) -> list[str]:
        service = self._services[name]
        options = ["--network", self.network, "--ip", self._addresses[name], *self._hosts]
        options += [f"--cap-drop={cap}" for cap in service.get("cap_drop", [])]
        options += ["--read-only"] if service.get("read_only") else []
        for volume in service.get("volumes", []):
            options += ["-v", f"{self.network}-{volume}"]
        for key, value in service.get("environment", {}).items():
            options += ["-e", f"{key}={value}"]
        return options


def wait_log(container: str, text: str, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while text not in podman("logs", container, check=False):
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{container}: no {text!r} in its log:\n{podman('logs', container)}"
            )
        time.sleep(0.2)


class OutsideHost:
    """A network namespace with one link to this host and no route to any container."""

    name = "aerobee-out"
    host_address = "10.89.251.1"
    address = "10.89.251.2"

    def __enter__(self) -> OutsideHost:
        self.remove()
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", "aerobee-o0", "type", "veth", "peer", "name", "aerobee-o1")
        run("ip", "link", "set", "aerobee-o1", "netns", self.name)
        run("ip", "addr", "add", f"{self.host_address}/30", "dev", "aerobee-o0")
        run("ip", "link", "set", "aerobee-o0", "up")
        inside = ("ip", "netns", "exec", self.name, "ip")
        run(*inside, "addr", "add", f"{self.address}/30", "dev", "aerobee-o1")
        run(*inside, "link", "set", "aerobee-o1", "up")
        run(*inside, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        run("ip", "netns", "del", self.name, check=False)
        run("ip", "link", "del", "aerobee-o0", check=False)

    def run(self, *command: object, timeout: float = 60) -> str:
        return run("ip", "netns", "exec", self.name, *command, timeout=timeout)
