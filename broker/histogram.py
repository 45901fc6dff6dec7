"""How often something took how long, counted by powers of two of a microsecond."""

from typing import Final

BITS_MAX: Final = 40  # over twelve days


class Histogram:
    """Adding costs a list access; sums over buckets are made when somebody asks."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (BITS_MAX + 1)
        self.total = 0.0  # seconds

    def add(self, seconds: float) -> None:
        self.counts[int(seconds * 1e6).bit_length()] += 1
        self.total += seconds

    def buckets(self, first_bits: int, last_bits: int, scale: float) -> list[tuple[str, float]]:
        """Prometheus' buckets: (upper bound in units of `scale` per second, how many below)."""
        below = sum(self.counts[:first_bits])
        found = []
        for bits in range(first_bits, last_bits + 1):
            below += self.counts[bits]
            found.append((repr((1 << bits) / 1e6 * scale), float(below)))
        return [*found, ("+Inf", float(sum(self.counts)))]
