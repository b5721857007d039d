"""Reports: what a timeline's file says of a run, in figures and on a page (docs/report.md)."""

from legato.observe.report.analysis import Analysis, analyse
from legato.observe.report.recording import Recording, read

__all__ = ["Analysis", "Recording", "analyse", "read"]
