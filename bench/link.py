"""The shape of one direction of a link: a token bucket of the kernel's (tbf) and the queue before it.

Both sizes are compromises, measured with raw TCP on two cores (bbr and cubic, 4 hosts, every host sending to all):

- burst: must exceed a 64 KB GSO packet, or tbf cuts every packet in software (at 1 Gbit/s three times the CPU, and
  0.82 of the line rate instead of 0.95); must cover a late timer (at 4 Gbit/s, 128 KB gave 0.62 to 0.95 from run to
  run, 512 KB 0.95 always); but on slow links bbr takes a large burst for bandwidth and then drowns in its losses
  (at 0.1 Gbit/s, 64 KB before a 4 ms queue gave 0.0005).
- queue: bbr with a few flows needs 4 ms (at 1 Gbit/s, 1 ms gave 0.41 to 0.91, and 4 ms as much as 50 ms did, 0.95);
  below 0.5 Gbit/s that is too few packets to share. A deeper queue gains nothing and cubic fills it: 21 ms at 50 ms.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LinkShape:
    """What tbf is told."""

    gbps: float
    """Line rate, Ethernet headers included."""

    def __post_init__(self) -> None:
        if not 0 < self.gbps <= 32:  # tbf's 32-bit field counts bytes per second
            raise ValueError(f"gbps must be above 0 and at most 32, not {self.gbps}")

    @property
    def bytes_per_s(self) -> int:
        return round(self.gbps * 1e9 / 8)

    @property
    def burst_bytes(self) -> int:
        """What may pass at once after a pause: 128 KB, but 1 to 2 ms of the line."""
        return self._clamp(128 << 10, shortest_s=0.001, longest_s=0.002)

    @property
    def queue_bytes(self) -> int:
        """What may wait, the rest is dropped: 512 KB, but 4 to 16 ms of the line."""
        return self._clamp(512 << 10, shortest_s=0.004, longest_s=0.016)

    def _clamp(self, num_bytes: int, shortest_s: float, longest_s: float) -> int:
        return round(max(self.bytes_per_s * shortest_s, min(num_bytes, self.bytes_per_s * longest_s)))
