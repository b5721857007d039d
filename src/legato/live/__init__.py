"""What a job tells of itself while it trains (docs/live.md).

every rank   hooks ──► recorder ── once a second ──► figures ──┐ through the conductor, nobody waits
rank 0                                                         ▼
             tuner ──► tuning facts ──────────────────────► monitor ──► board ──► endpoint ──► page, `legato top`,
             log   ──► markers ───────────────────────────────┘  └──► writers                 Prometheus
"""

from legato.live.config import LiveConfig
from legato.live.monitor import Monitor

__all__ = ["LiveConfig", "Monitor"]
