"""Machines as network namespaces around one router, which can drop what one sends to another."""

from __future__ import annotations

import subprocess

PREFIX = "aerobee-c"
NET = "10.97"
OUTSIDE = 9  # this host: clients


def ip(*words: object, check: bool = True) -> None:
    subprocess.run(["ip", *map(str, words)], check=check, capture_output=True)


def address_of(number: int) -> str:
    return f"{NET}.{number}.2"


class Network:
    """Entering it makes the namespaces, leaving it removes them."""

    router = f"{PREFIX}-r"

    def __init__(self, count: int) -> None:
        self._count = count
        self._dropped: set[tuple[int, int]] = set()

    @staticmethod
    def machine(number: int) -> str:
        return f"{PREFIX}-{number}"

    def __enter__(self) -> Network:
        self._remove()
        ip("netns", "add", self.router)
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        ip("netns", "exec", self.router, "sh", "-c", forward)
        for number in range(1, self._count + 1):
            ip("netns", "add", self.machine(number))
            self._link(number, self.machine(number), "default")
        self._link(OUTSIDE, None, f"{NET}.0.0/16")
        return self

    def _link(self, number: int, machine: str | None, route: str) -> None:
        """`machine`: None is this host."""
        end, router_end = f"aec{number}", f"aer{number}"
        inside = ("-n", machine) if machine else ()
        ip("link", "add", end, "type", "veth", "peer", "name", router_end)
        ip("link", "set", router_end, "netns", self.router)
        ip("-n", self.router, "addr", "add", f"{NET}.{number}.1/24", "dev", router_end)
        ip("-n", self.router, "link", "set", router_end, "up")
        if machine:
            ip("link", "set", end, "netns", machine)
            ip(*inside, "link", "set", "lo", "up")
        ip(*inside, "addr", "add", f"{address_of(number)}/24", "dev", end)
        ip(*inside, "link", "set", end, "up")
        ip(*inside, "route", "add", route, "via", f"{NET}.{number}.1")

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        ip("link", "del", f"aec{OUTSIDE}", check=False)
        for number in range(1, self._count + 1):
            ip("netns", "del", self.machine(number), check=False)
        ip("netns", "del", self.router, check=False)

    def drop(self, sender: int, receiver: int) -> None:
        """Packets from `sender` to `receiver` are dropped silently."""
        if (sender, receiver) not in self._dropped:
            self._rule("add", sender, receiver)
            self._dropped.add((sender, receiver))

    def heal(self) -> None:
        for pair in self._dropped:
            self._rule("del", *pair)
        self._dropped.clear()

    def _rule(self, verb: str, sender: int, receiver: int) -> None:
        to = ("iif", f"aer{sender}", "to", f"{NET}.{receiver}.0/24", "blackhole")
        ip("-n", self.router, "rule", verb, *to)
