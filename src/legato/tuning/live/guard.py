"""The guard: a candidate is kept only if it is faster than the baseline on real steps, beyond noise.

A pure state machine: step times come in, what the next step runs and decisions come out.

               propose                 faster beyond noise
    WATCHING ──────────► TRIAL ────────────────────────────► WATCHING, the candidate stays
        ▲                  │  │        slower, or not clearly faster within the budget
        └──────────────────┘  └────────────────────────────► WATCHING, the baseline stays
          step times that cannot be: not counted

A trial goes block by block, in the order that cancels a drift, and leaves out the first step of each block, whose
forward still waits for sums that the other plan has sent:

    baseline  candidate  candidate  baseline  baseline  candidate …
    x B B     x C C      x C C      x B B     …
"""

from dataclasses import dataclass
from enum import Enum
from math import exp, isfinite, log, sqrt
from statistics import mean, median, variance

from legato.errors import InputError
from legato.tuning.candidate import BASELINE, Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Keeps a tuner from going back and forth, and tells when its model no longer fits."""

    gain: float = 0.05
    """Switch when the predicted gain in speed is more than this. The paper's value, where a switch is a restart."""
    drift: float = 0.10
    """Adapt the model when it is further than this from what was measured."""

    def __post_init__(self) -> None:
        if not (self.gain >= 0 and self.drift >= 0):
            raise InputError(f"trigger: gain={self.gain} and drift={self.drift} must be 0 or more")

    def worth_switching(self, present_s: float, proposed_s: float) -> bool:
        return present_s > (1 + self.gain) * proposed_s

    def has_drifted(self, predicted_s: float, measured_s: float) -> bool:
        return abs(measured_s - predicted_s) > self.drift * measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """How long a trial may be, and how sure it must become."""

    block_steps: int = 3
    """Steps in a row under one plan, the first of which does not count."""
    min_blocks: int = 4
    """Blocks of both plans together before anything is decided."""
    max_blocks: int = 16
    """Blocks after which a trial that is still open is decided for the baseline."""
    sigmas: float = 2.0
    """Standard errors that a difference must exceed to be more than noise."""
    worthwhile: float = 0.0
    """A candidate that cannot gain as much as this, noise included, is refused before the last block."""

    def __post_init__(self) -> None:
        if self.block_steps < 2:
            raise InputError(f"guard: block_steps={self.block_steps} must be at least 2, the first does not count")
        if not 4 <= self.min_blocks <= self.max_blocks:
            raise InputError(f"guard: min_blocks={self.min_blocks} must be 4 to max_blocks={self.max_blocks}")
        if not self.sigmas > 0:
            raise InputError(f"guard: sigmas={self.sigmas} must be more than 0")
        if not self.worthwhile >= 0:
            raise InputError(f"guard: worthwhile={self.worthwhile} must be 0 or more")


class Verdict(Enum):
    KEPT = "kept"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The end of a trial."""

    verdict: Verdict
    candidate: Candidate
    baseline: Candidate
    gain: float
    """How much faster the candidate is than the baseline: 0.1 is 10 % more steps in the same time."""
    error: float
    """Standard error of the gain."""
    baseline_s: float
    candidate_s: float
    steps: int
    """Steps that the trial took."""

    def __str__(self) -> str:
        measured = (
            f"{self.candidate} takes {self.candidate_s * 1e3:.1f} ms a step, "
            f"{self.baseline} {self.baseline_s * 1e3:.1f} ms "
            f"({self.gain:+.1%} ± {self.error:.1%}, {self.steps} steps)"
        )
        if self.verdict is Verdict.KEPT:
            return f"{measured}: it stays on"
        reason = "slower" if self.gain < -self.error else "not faster beyond noise"
        return f"{measured}: {reason}, so {self.baseline} stays"


class Guard:
    """Compares one candidate at a time with a baseline: what is there without scheduling, unless it is told another."""

    def __init__(self, config: GuardConfig | None = None, *, baseline: Candidate = BASELINE) -> None:
        self._config = config or GuardConfig()
        self._baseline = baseline
        self._standing = baseline
        self._proposed: Candidate | None = None
        self._times: dict[Candidate, list[float]] = {}
        self._steps = 0

    @property
    def in_trial(self) -> bool:
        return self._proposed is not None

    def propose(self, candidate: Candidate) -> None:
        """Begin a trial; one that is under way is given up. The baseline needs none."""
        self._standing = self._baseline if candidate == self._baseline else self._standing
        self._proposed = None if candidate == self._baseline else candidate
        self._times = {self._baseline: [], candidate: []}
        self._steps = 0

    def keep(self, candidate: Candidate) -> None:
        """Without a trial: it is faster than the baseline can be."""
        self._standing, self._proposed = candidate, None

    def ask(self) -> Candidate:
        """What the next step runs."""
        if self._proposed is None:
            return self._standing
        return self._proposed if (self._block + 1) // 2 % 2 else self._baseline

    def tell(self, step_s: float) -> Decision | None:
        """The time of the step that was asked for. What cannot be a time is not counted, and its step is run again."""
        if self._proposed is None or not (isfinite(step_s) and step_s > 0):
            return None
        if self._steps % self._config.block_steps:
            self._times[self.ask()].append(step_s)
        self._steps += 1
        if self._steps % self._config.block_steps or self._block < self._config.min_blocks or self._block % 2:
            return None
        return self._decide(self._proposed)

    @property
    def _block(self) -> int:
        return self._steps // self._config.block_steps

    def _decide(self, candidate: Candidate) -> Decision | None:
        """A decision, or None while neither plan is ahead beyond noise and blocks are left."""
        baseline, proposed = _logs(self._times[self._baseline]), _logs(self._times[candidate])
        difference = mean(baseline) - mean(proposed)
        error = sqrt(variance(baseline) / len(baseline) + variance(proposed) / len(proposed))
        noise = self._config.sigmas * error
        clear = abs(difference) > noise
        hopeless = difference + noise < log(1 + self._config.worthwhile)
        if not (clear or hopeless) and self._block < self._config.max_blocks:
            return None
        kept = clear and difference > 0
        self._standing = candidate if kept else self._baseline
        self._proposed = None
        gain = exp(difference) - 1
        return Decision(
            verdict=Verdict.KEPT if kept else Verdict.REFUSED,
            candidate=candidate,
            baseline=self._baseline,
            gain=gain,
            error=error * (1 + gain),
            baseline_s=median(self._times[self._baseline]),
            candidate_s=median(self._times[candidate]),
            steps=self._steps,
        )


def _logs(times_s: list[float]) -> list[float]:
    """Logarithms, without steps over twice the median: something else held them up, a checkpoint or the data."""
    middle = median(times_s)
    return [log(time) for time in times_s if time <= 2 * middle]
