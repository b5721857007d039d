"""The tuners that training can be given, by name."""

from legato.errors import InputError
from legato.sim.cluster import Cluster
from legato.tuning.autobyte.tuner import AutoByte
from legato.tuning.candidate import Candidate, Space
from legato.tuning.live.guard import Trigger
from legato.tuning.search.bayes import Bayes
from legato.tuning.search.trying import Grid
from legato.tuning.tuner import TUNERS, Tuner
from legato.tuning.twin.twin import Twin


def tuner_named(name: str, space: Space, shape: Cluster, start: Candidate) -> Tuner:
    """A new tuner for a job of this shape, whose speed is unknown, that runs `start`."""
    match name:
        case "twin":
            # The first plan is a good one already (exchange/planner.py), and a switch may cost a trial, some of
            # whose steps are slow: more than the twin asks for offline must be in it.
            return Twin(space, shape, start=start, trigger=Trigger())
        case "autobyte":
            return AutoByte(space, shape, start=start)
        case "bayes":
            return Bayes(space)
        case "grid":
            return Grid(space)
    raise InputError(f"tuner {name!r} is unknown; accepted: {', '.join(TUNERS)}, off")
