"""When to act on a prediction: AutoByte's two thresholds."""

from dataclasses import dataclass

from legato.errors import InputError


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
