"""The meter: what one rank sees of its own steps, brought together to a report. Times come in; no clock is read here.

Whatever passes between two marks belongs to a layer, less what was spent waiting for sums; so the layers' times and the
waits together are the step:

    step     enter 1   enter 2       gradient 2   gradient 1      step
    ┆··· 0 ···┆─── f1 ───┆── f2, b2 ──┆──── b1 ────┆···· 0 ·······┆
                                 └ a third of it is taken for forward: nothing tells where backward begins

Layer 0 is what happens before the first parameter is used: data, the loss of other things, the end of the step before.
"""

from legato.tuning.statistics import WINDOW_STEPS, Report

FORWARD_SHARE = 1 / 3
"""Of the time from the last layer's forward to the first gradient: a backward pass takes about twice a forward pass."""


class Meter:
    """Marks come in, and at the end of a window a report goes out."""

    def __init__(self, *, rank: int, num_layers: int, num_bytes: int, now_ns: int) -> None:
        """`num_layers` counts layer 0, `num_bytes` are those of all gradients."""
        self._rank = rank
        self._num_layers = num_layers
        self._num_bytes = num_bytes
        self._layer = 0
        self._in_forward = True
        self._since_ns = now_ns
        self._step_ns = now_ns
        self._traffic = (0, 0)
        self._communication_ns = now_ns
        self._clear()
        self.restart()

    @staticmethod
    def report_bytes(num_layers: int) -> int:
        """What the report of a whole window is on its way, as text, at most."""
        return 107 + 13 * (3 * WINDOW_STEPS + 2 * num_layers)

    # ---- marks, several hundred a step ----

    def enter(self, layer: int, now_ns: int) -> None:
        """The forward pass comes to a layer."""
        self._forward_ns[self._layer] += now_ns - self._since_ns
        self._layer, self._since_ns, self._in_forward = layer, now_ns, True

    def gradient(self, layer: int, now_ns: int) -> None:
        """The backward pass has made a gradient."""
        passed_ns = now_ns - self._since_ns
        if self._in_forward:
            forward_ns = int(passed_ns * FORWARD_SHARE)
            self._forward_ns[self._layer] += forward_ns
            passed_ns -= forward_ns
            self._layer, self._in_forward = 0, False
            self._first_gradient_ns = now_ns
        self._backward_ns[layer] += passed_ns
        self._since_ns = now_ns

    def waited(self, begin_ns: int, end_ns: int) -> None:
        """For a sum that was not there."""
        self._since_ns += end_ns - begin_ns
        self._last_wait_ns = end_ns

    # ---- once a step ----

    def step(self, now_ns: int, traffic: tuple[int, int]) -> float:
        """A step is over; `traffic` is what was sent and received since the beginning. The step's seconds."""
        seconds = (now_ns - self._step_ns) * 1e-9
        self._steps_s.append(seconds)
        self._forwards_ns.append(self._forward_ns)
        self._backwards_ns.append(self._backward_ns)
        sent, received = (now - before for now, before in zip(traffic, self._traffic, strict=True))
        # Where nothing was waited for, when communication ended is not known.
        busy_s = (self._last_wait_ns - self._communication_ns) * 1e-9
        if busy_s > 0 and max(sent, received) > 0:
            rate = self._num_bytes / busy_s / max(sent, received)
            self._rates.append((rate * sent, rate * received))
        self._communication_ns = self._first_gradient_ns or now_ns
        self._step_ns, self._traffic = now_ns, traffic
        self._clear()
        return seconds

    @property
    def num_steps(self) -> int:
        """Of the window so far."""
        return len(self._steps_s)

    def restart(self) -> None:
        """A new window begins with the next step."""
        self._steps_s: list[float] = []
        self._forwards_ns: list[list[int]] = []
        self._backwards_ns: list[list[int]] = []
        self._rates: list[tuple[float, float]] = []

    def report(self) -> Report:
        """The window, which is not empty."""
        up, down = zip(*self._rates, strict=True) if self._rates else ((), ())
        return Report(
            rank=self._rank,
            steps_s=tuple(self._steps_s),
            forward_s=_medians_s(self._forwards_ns),
            backward_s=_medians_s(self._backwards_ns),
            up_bytes_per_s=up,
            down_bytes_per_s=down,
        )

    def _clear(self) -> None:
        self._forward_ns = [0] * self._num_layers
        self._backward_ns = [0] * self._num_layers
        self._last_wait_ns = 0
        self._first_gradient_ns = 0


def _medians_s(steps_ns: list[list[int]]) -> tuple[float, ...]:
    """Of each layer, over the steps."""
    middle = len(steps_ns) // 2
    return tuple(sorted(times)[middle] * 1e-9 for times in zip(*steps_ns, strict=True))
