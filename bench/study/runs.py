"""Simulations with a memory: what has been simulated once is read from a file, so that a study resumes."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import legato
from legato.core import Plan, Workload
from legato.sim import Cluster, simulate


class Outcome(NamedTuple):
    """The steady state of a simulated run, without its trace."""

    iteration_s: float
    bound_s: float
    compute_s: float
    communication_s: float

    @property
    def ratio(self) -> float:
        """Iteration over T*."""
        return self.iteration_s / self.bound_s


class Runs:
    """Simulates, and remembers under a key of everything that the outcome follows from, the simulator's code too."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._code = _code_digest()
        self._known = {} if path is None else _read(path)
        self.simulated = 0
        self.remembered = 0

    def run(self, task: Workload, cluster: Cluster, plan: Plan) -> Outcome:
        text = "\n".join((self._code, task.to_json(), repr(cluster), plan.to_json()))
        key = hashlib.sha256(text.encode()).hexdigest()[:24]
        known = self._known.get(key)
        if known is not None:
            self.remembered += 1
            return known
        result = simulate(task, cluster, plan)
        outcome = Outcome(result.iteration_s, result.bound_s, result.compute_s, result.communication_s)
        self._known[key] = outcome
        self.simulated += 1
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps([key, *outcome]) + "\n")
        return outcome

    def best(self, task: Workload, cluster: Cluster, plans: Iterable[Plan]) -> Outcome:
        """The shortest iteration that one of the plans reaches: what a tuner with all the time would find."""
        return min(self.run(task, cluster, plan) for plan in plans)


def _code_digest() -> str:
    """A hash of the code that an outcome follows from."""
    package = Path(legato.__file__).parent
    digest = hashlib.sha256()
    for path in sorted((*package.glob("core/**/*.py"), *package.glob("sim/*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Outcome]:
    """What earlier runs wrote; a line that an interrupted one left half written does not count."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            key, *values = json.loads(line)
            known[key] = Outcome(*values)
        except (ValueError, TypeError):
            continue
    return known
