"""What the demo says, for outcomes whose figures are known."""

from dataclasses import replace

import pytest

from bench.comparison import Comparison, compare
from bench.contest import SYSTEMS, Outcome
from legato.core import Layer

# Forward 1 + 1 s, backward 2 + 2 s; 2 workers move each byte once, so a second a layer's million bytes.
LAYERS = [Layer("first", 0, 1.0, 2.0), Layer("second", 6_000_000, 1.0, 2.0)]
BYTES_PER_S = 1e6


def outcome(*, ddp_s: float, legato_s: float, legato_loss: float = 0.5) -> Outcome:
    return Outcome(
        turns_s={"alone": [[6.0]], "ddp": [[ddp_s]], "fifo": [[10.0]], "legato": [[legato_s]]},
        cpu_s={system: [6.0] for system in SYSTEMS},
        losses={"alone": [0.5], "ddp": [0.5], "fifo": [0.5], "legato": [legato_loss]},
        layers=[LAYERS],
    )


def compared(**figures: float) -> Comparison:
    return compare([outcome(**figures)] * 2, BYTES_PER_S)


def test_limits() -> None:
    comparison = compared(ddp_s=12, legato_s=9)
    assert comparison.communication_s == pytest.approx(6)
    assert comparison.bound_s == pytest.approx(9)  # its own 3 s of computation, then 6 s on the link
    assert comparison.backward_only_s == pytest.approx(2 + 2 + 6)  # forward, backward of the second, the link
    assert comparison.speedup["legato"] == pytest.approx(12 / 9)
    assert comparison.order_gains == pytest.approx([10 / 9] * 2)


@pytest.mark.parametrize(
    ("figures", "beginning"),
    [
        ({"ddp_s": 12, "legato_s": 9}, "Legato helped, 1.33×: its transport alone"),
        ({"ddp_s": 12, "legato_s": 12}, "Legato did not help, "),
        ({"ddp_s": 12, "legato_s": 9, "legato_loss": 0.6}, "The losses differ by 0.1: "),
    ],
)
def test_verdict(figures: dict[str, float], beginning: str) -> None:
    assert compared(**figures).verdict().startswith(beginning)


def test_nothing_to_gain_on_fast_links() -> None:
    comparison = compare([outcome(ddp_s=6, legato_s=6)] * 2, bytes_per_s=1e12)
    assert comparison.verdict().startswith("Legato had nothing to gain: ")


def test_a_disturbed_round_does_not_decide() -> None:
    calm, busy = outcome(ddp_s=12, legato_s=9), outcome(ddp_s=12, legato_s=30)
    turns_s = {system: 2 * calm.turns_s[system] + busy.turns_s[system] for system in SYSTEMS}
    assert compare([replace(calm, turns_s=turns_s)] * 2, BYTES_PER_S).speedup["legato"] == pytest.approx(12 / 9)


def test_disturbance_shows_in_processor_time() -> None:
    calm = outcome(ddp_s=12, legato_s=9)
    assert not compare([calm] * 2, BYTES_PER_S).was_disturbed
    busy = replace(calm, cpu_s={**calm.cpu_s, "alone": [3.0]})
    verdict = compare([busy] * 2, BYTES_PER_S).verdict()
    assert verdict.startswith("Legato helped, 1.33×")
    assert verdict.endswith("take the figures as rough.")
