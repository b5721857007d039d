"""Observers: they see every event and change nothing. The timeline is one (docs/timeline.md)."""

from legato.observe.notes import TimelineConfig
from legato.observe.timeline import Timeline

__all__ = ["Timeline", "TimelineConfig"]
