"""Live tuning: what rank 0 decides while training runs. Events come in, commands go out; no clock, thread or tensor.

               a window: ask              the tuner has settled        faster than wfbp, or wfbp stays
    LOOKING ──────────────► EXPLORING ───────────────────► TRIAL ─────────────────────► STANDING
       │ ▲                   │     ▲ │ not settled: its       (the guard)                   │
       └─┘ nothing to gain   └─────┘ └ next choice                                          │
                             ▲ statistics that cannot be: the last good plan                │
                             └──────────────────────────────────────────────────────────────┘
                                             a step takes 10 % more or less than it did

A trial is skipped where the measured step is shorter than the baseline's could be.

Only rank 0 decides. A plan that is to change is agreed on by all ranks for a step that none has begun, and until then
the old one is what runs: so every step comes with what it ran. A step's forward waits for the sums of the step before;
its time counts for a plan from the second step on, in windows as in trials (the guard's blocks).
"""

from dataclasses import dataclass
from enum import Enum, auto

from legato.tuning.candidate import Candidate
from legato.tuning.live.guard import Decision, Guard, Trigger, Verdict
from legato.tuning.statistics import Statistics

WORTHWHILE = 0.03
"""Of a step: where less than this is spent waiting, no plan can gain more, and nothing is tried."""
BEYOND_DOUBT = 0.9
"""No trial is needed where a measured step is shorter than this much of what the baseline takes in simulation, where it
loses nothing: every step of the trial under the baseline would be a slow one."""
MAX_REFUSALS = 6
"""Plans that were not agreed on, one after the other, before tuning ends."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Have all ranks follow a candidate, from a step that none has begun; then `switched`, or `not_switched`."""

    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Ask:
    """Tell the tuner, off the main thread, and ask what it would run; then `answered`, or `failed`."""

    statistics: Statistics


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the log."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Advise:
    """Log what would help, where scheduling does not."""


Command = Switch | Ask | Say | Advise


class State(Enum):
    LOOKING = auto()
    EXPLORING = auto()
    TRIAL = auto()
    STANDING = auto()
    ENDED = auto()


class Live:
    """One job's tuning, from what it starts with."""

    def __init__(self, start: Candidate, *, guard: Guard | None = None) -> None:
        self.state = State.LOOKING
        self._standing = start
        self._wanted = start
        self._agreed = start
        self._guard = guard or Guard()
        self._trigger = Trigger()
        """Its `drift` says when what stands is looked at again."""
        self._switching: Candidate | None = None
        self._refusals = 0
        self._asking = False
        self._present_s = 0.0
        self._reference_s: float | None = None
        self._said = ""

    @property
    def standing(self) -> Candidate:
        """The last good plan."""
        return self._standing

    # ---- events ----

    def step(self, ran: Candidate, step_s: float) -> list[Command]:
        """A step is over."""
        commands: list[Command] = []
        if self.state is State.TRIAL and ran == self._guard.ask():
            decision = self._guard.tell(step_s)
            if decision is not None:
                commands += self._decided(decision)
            self._wanted = self._guard.ask()
        return [*commands, *self._steer()]

    def window(self, measured: Statistics | str) -> list[Command]:
        """The statistics of a window that ran one plan, or why there are none."""
        if self._asking or self.state in (State.TRIAL, State.ENDED):
            return []
        if isinstance(measured, str):
            if self.state is State.EXPLORING:
                self._wanted = self._standing
            return [*self._say(measured, f"statistics not used, {self._wanted} stays: {measured}"), *self._steer()]
        self._present_s = measured.iteration_s
        if self.state is State.STANDING and not self._has_drifted(measured.iteration_s):
            return []
        waiting = 1 - measured.workload.compute_s / measured.iteration_s
        if self.state is State.LOOKING and waiting < WORTHWHILE:
            return self._say("quiet", f"{waiting:.1%} of a step is spent waiting for sums: no plan can gain more")
        self.state = State.EXPLORING
        self._asking = True
        return [Ask(measured)]

    def answered(self, choice: Candidate, settled: bool, baseline_s: float | None = None) -> list[Command]:
        """The tuner has been told, and this is what it would run; `settled`: for as long as nothing changes.

        `baseline_s` is what the baseline would take if it lost nothing, where the tuner can tell.
        """
        self._asking = False
        if self.state is State.ENDED:
            return []
        if not settled or choice != self._agreed:
            self._wanted = choice
        elif choice == self._standing and self._reference_s is not None:
            self.state = State.STANDING
            self._reference_s = self._present_s
        elif baseline_s is not None and self._present_s < BEYOND_DOUBT * baseline_s:
            self._guard.keep(choice)
            self._stand()
            return self._say(
                str(choice),
                f"{choice} takes {self._present_s * 1e3:.1f} ms a step, and wfbp could not do with less than "
                f"{baseline_s * 1e3:.1f} ms: it stays, without a trial",
            )
        else:
            self._guard.propose(choice)
            self._wanted = self._guard.ask()
            self.state = State.TRIAL
            if not self._guard.in_trial:  # the tuner prefers the baseline, which needs none
                self._stand()
                return [*self._say(str(choice), f"the tuner has settled on {choice}, without a trial"), *self._steer()]
        return self._steer()

    def switched(self) -> list[Command]:
        """The plan of the last `Switch` is agreed on."""
        assert self._switching is not None
        self._agreed, self._switching, self._refusals = self._switching, None, 0
        return self._steer()

    def not_switched(self, reason: str) -> list[Command]:
        """It is not, and nothing has changed anywhere."""
        self._switching = None
        self._refusals += 1
        if self._refusals < MAX_REFUSALS:
            return self._steer()
        return self.failed(f"plans are not agreed on ({reason})")

    def failed(self, reason: str) -> list[Command]:
        """The tuner cannot go on; training does, with the last good plan."""
        self.state = State.ENDED
        self._asking = False
        self._wanted = self._standing if self._refusals < MAX_REFUSALS else self._agreed
        return [Say(f"tuning ends, {self._wanted} stays: {reason}", is_warning=True), *self._steer()]

    # ---- decisions ----

    def _steer(self) -> list[Command]:
        """Towards what is wanted, one switch at a time."""
        if self._switching is not None or self._wanted == self._agreed:
            return []
        self._switching = self._wanted
        return [Switch(self._wanted)]

    def _decided(self, decision: Decision) -> list[Command]:
        self._stand()
        return [Say(str(decision))] if decision.verdict is Verdict.KEPT else [Say(str(decision)), Advise()]

    def _stand(self) -> None:
        """What the guard says now is the last good plan; what a step takes under it is yet to be seen."""
        self.state = State.STANDING
        self._standing = self._guard.ask()
        self._reference_s = None

    def _has_drifted(self, measured_s: float) -> bool:
        """Whether a step is no longer what it was when this plan was decided for."""
        if self._reference_s is None:
            self._reference_s = measured_s
        return self._trigger.has_drifted(self._reference_s, measured_s)

    def _say(self, matter: str, text: str) -> list[Command]:
        """Once, until there is another matter."""
        if matter == self._said:
            return []
        self._said = matter
        return [Say(text)]
