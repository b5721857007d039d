"""What a tuner is: it is asked what the next window of steps shall run, and told what came of it.

    ask() ──► candidate ──► ten real steps ──► statistics ──► tell() ──► ask() ──► …

Tuners know no clock, thread, rank or tensor. Whether what they say is followed is the guard's decision.
"""

from typing import Protocol

from legato.tuning.candidate import Candidate
from legato.tuning.statistics import Statistics

TUNERS = ("twin", "autobyte", "bayes", "grid")
"""Their names; `tuners` makes them."""


class Tuner(Protocol):
    def ask(self) -> Candidate:
        """What to run next. Asking twice without telling gives the same answer."""

    def tell(self, statistics: Statistics) -> None:
        """What was measured; of any candidate, not only of the one that was asked for."""

    @property
    def settled(self) -> bool:
        """Whether the tuner would go on with what it says now for as long as nothing changes."""
