"""The shape of one direction of a link: a token bucket of the kernel's (tbf) and the queue before it.

Both sizes are compromises, from one sweep of raw TCP on two cores that others used too (bbr and cubic, 4 hosts, every
host sending to all; fractions of the line rate, lowest to highest host):

- burst: must exceed a 64 KB GSO packet, or tbf cuts packets in software: at 1 Gbit/s, bbr, queues of 4 ms and more,
  16 KB and 64 KB gave 0.68 to 0.91 at up to three times the CPU, 128 KB and 256 KB 0.94 to 0.955. Must cover a late
  timer: at 4 Gbit/s 128 KB gave 0.59 to 0.95, 512 KB 0.91 to 0.955. But on slow links bbr takes a large burst for
  bandwidth and then drowns in its losses: at 0.1 Gbit/s, 64 KB before a 4 ms queue gave one flow 0.0005.
- queue: at 1 Gbit/s, burst 128 KB, bbr got 0.69 to 0.91 with 1 ms, and with 4 ms 0.95, no less than with 50 ms. Below
  0.5 Gbit/s 4 ms are too few packets to share. A deeper queue gains nothing and cubic fills it (16 to 21 ms at 50 ms).

With the sizes below, one flow reached 0.93 to 0.957 at 0.1, 0.5, 1 and 4 Gbit/s, all-to-all 0.875 to 0.955.
"""

from dataclasses import dataclass

MAX_GBPS = 32
"""tbf's 32-bit field counts bytes per second."""


@dataclass(frozen=True, kw_only=True)
class LinkShape:
    """What tbf is told."""

    gbps: float
    """Line rate, Ethernet headers included."""

    def __post_init__(self) -> None:
        if not 0 < self.gbps <= MAX_GBPS:
            raise ValueError(f"gbps must be above 0 and at most {MAX_GBPS}, not {self.gbps}")

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
