"""A latency histogram with buckets of powers of two of a microsecond."""

from collections.abc import Iterable
from typing import Final

BITS_MAX: Final = 40  # over twelve days


class Histogram:
    """Adding costs a list access; sums over buckets are computed on read."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (BITS_MAX + 1)
        self.total = 0.0  # seconds

    def add(self, seconds: float) -> None:
        bits = int(seconds * 1e6).bit_length()
        self.counts[bits if bits < BITS_MAX else BITS_MAX] += 1
        self.total += seconds

    def add_many(self, seconds: float, count: int) -> None:
        """Count several that each took this long."""
        bits = int(seconds * 1e6).bit_length()
        self.counts[bits if bits < BITS_MAX else BITS_MAX] += count
        self.total += seconds * count

    def buckets(self, bits: Iterable[int], scale: float) -> list[tuple[str, float]]:
        """Prometheus' buckets: (upper bound in units of `scale` per second, how many below)."""
        return buckets(self.counts, {n: repr((1 << n) / 1e6 * scale) for n in bits})


def quantile(counts: list[int], share: float) -> float:
    """The quantile in seconds, interpolated within its bucket."""
    wanted = sum(counts) * share
    below = 0
    for bits, count in enumerate(counts):
        if count and below + count >= wanted:
            low, high = (1 << bits) / 2, 1 << bits
            return (low + (high - low) * (wanted - below) / count) / 1e6
        below += count
    return 0.0


def buckets(counts: list[int], bounds: dict[int, str]) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, in ascending order; then the total."""
    found = [(text, float(sum(counts[: bits + 1]))) for bits, text in bounds.items()]
    return [*found, ("+Inf", float(sum(counts)))]
