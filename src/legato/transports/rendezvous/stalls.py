"""Stalls: who waits for whom, long before anybody gives up. Kept by the conductor and free of I/O.

    a rank waits `stall_s` ──► Waiting ──► who else? ──► Stalled, to everybody: who waits, for which tensor, for whom
                                                          └► those that most ranks wait for log their stacks

A member that is dead is heard of within seconds, through heartbeats. One that lives may be saving a checkpoint, so it
is only named: the job ends at its own, long timeout, and then all ranks blame the same one, though each waits for
others.
"""

from collections import Counter
from collections.abc import Callable

from legato.errors import DeadlineError
from legato.transports.rendezvous.messages import Stalled, Waiting

_GATHER_S = 1.0
"""How long after the first report the others are waited for: ranks begin to wait at about the same time."""
_REPEAT_S = 60.0
"""How long after a report of a stall that goes on the next one comes; then twice as long, and so on."""


class Stalls:
    """Reports of ranks in, reports for everybody out."""

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._waiting: dict[int, Waiting] = {}
        self._report_at_s: float | None = None
        self._repeat_s = _REPEAT_S

    def waiting(self, rank: int, report: Waiting, now_s: float) -> None:
        """A rank has been waiting for a while."""
        self._waiting[rank] = report
        if self._report_at_s is None:
            self._report_at_s = now_s + _GATHER_S

    def resumed(self, rank: int) -> None:
        """It waits no longer."""
        self._waiting.pop(rank, None)
        if not self._waiting:
            self._report_at_s = None
            self._repeat_s = _REPEAT_S

    def deadline_s(self) -> float | None:
        """When `expire` is next needed."""
        return self._report_at_s

    def expire(self, now_s: float) -> list[Stalled]:
        """The report that is due, if one is."""
        if self._report_at_s is None or now_s < self._report_at_s:
            return []
        self._report_at_s = now_s + self._repeat_s
        self._repeat_s *= 2
        suspects = self._suspects()
        where = "is alive, its log has its stacks" if len(suspects) == 1 else "are alive, their logs have their stacks"
        alive = f"; {self._list(suspects)} {where}" if suspects else ""
        longest_s = max(report.waited_s for report in self._waiting.values())
        return [Stalled(f"no progress for {longest_s:.0f} s: {self._words()}{alive}", tuple(suspects))]

    def verdict(self, limit_s: float) -> DeadlineError | None:
        """What ends the job at its timeout, the same for every rank; None where nobody waits for anybody."""
        suspects = self._suspects()
        if not suspects:
            return None
        report = next(each for each in self._waiting.values() if suspects[0] in each.missing)
        return DeadlineError(
            f"no progress for {limit_s:g} s: {self._words()}; see the log of {self._list(suspects)}, have every rank "
            "take part in the same operations, or set a longer LEGATO_TIMEOUT_S",
            rank=suspects[0],
            tensor=report.tensor,
            step=report.step,
        )

    def _suspects(self) -> list[int]:
        """Those that most ranks wait for; among them those that wait for nobody."""
        votes = Counter(rank for report in self._waiting.values() for rank in report.missing)
        most = [rank for rank, count in votes.items() if count == max(votes.values())]
        return sorted([rank for rank in most if rank not in self._waiting] or most)

    def _words(self) -> str:
        """`rank 0, rank 2 wait for tensor 'w' of step 5, which rank 1 has not sent`, and so on."""
        alike: dict[tuple[str | None, int | None, tuple[int, ...]], list[int]] = {}
        for rank, report in sorted(self._waiting.items()):
            alike.setdefault((report.tensor, report.step, report.missing), []).append(rank)
        sentences = []
        for (tensor, step, missing), ranks in alike.items():
            what = f"tensor {tensor!r}" + ("" if step is None else f" of step {step}")
            if tensor is None:
                what = f"the plan from step {step}"
            verb = "waits" if len(ranks) == 1 else "wait"
            missed = (
                f"which {self._list(missing)} {'has' if len(missing) == 1 else 'have'} not sent"
                if missing
                else "which is on its way"
            )
            sentences.append(f"{self._list(ranks)} {verb} for {what}, {missed}")
        return "; ".join(sentences)

    def _list(self, members: "list[int] | tuple[int, ...]") -> str:
        return ", ".join(map(self._name, members))
