"""The doctor's forecasts against what is then measured: `python -m bench.doctor`.

Five models × three bandwidths between two hosts of a testbed, a server beside them. For each bandwidth the doctor
examines the links as it does for users, and profiles every model where it will train. Then DDP and legato train, in
turns: as they come, with fp16, with the server. Nothing that training shows goes back into a forecast.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bench.grid.calls import Call
from bench.grid.environment import environment
from bench.grid.lineup import ALONE, System
from bench.grid.row import median_turns
from bench.grid.tables import markdown
from bench.grid.turns import Assignment, Seen, take_turns
from bench.sleeper import sleeping_model
from bench.study.settings import TITLES
from bench.testbed import crew
from bench.testbed.launch import PORT, Launch
from bench.testbed.namespace import acquire_permission
from bench.testbed.surroundings import surroundings
from bench.testbed.testbed import Testbed
from legato.core import Workload
from legato.doctor.examination import Examination, examine
from legato.doctor.forecast import Prognosis, foresee
from legato.settings import read_settings
from legato.sim.zoo import workload as of_zoo
from legato.torch.tuning.profile import ProfileConfig, profile
from legato.tuning.candidate import NATIVE

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "doctor.jsonl"
PAGE = ROOT / "docs" / "doctor.md"
MODELS = ("alexnet", "vgg16", "resnet50", "bert-large", "gpt2")
GBPS = (0.25, 0.5, 1.0)
NUM_HOSTS, NUM_SERVERS = 2, 1
NUM_BYTES, COMPUTE_S = 20_000_000, 0.3
"""Of every model's step: over 0.5 Gbit/s communication takes about as long as computation."""
NUM_ROUNDS, NUM_STEPS = 2, 3
TARGET = 0.10
_BEGIN, _END = "<!-- table doctor: by python -m bench.doctor -->\n", "<!-- end -->"

SYSTEMS: dict[str, tuple[System, Call | None]] = {
    "DDP": (System(name="DDP", family="ddp"), None),
    "legato": (System(name="legato", family="legato"), Call(transport=NATIVE)),
    "legato, 1 server": (
        System(name="legato, 1 server", family="legato", variation="servers"),
        Call(transport=NATIVE),
    ),
    "legato, fp16": (System(name="legato, fp16", family="legato"), Call(transport=NATIVE, compression="fp16")),
}
"""By the names of the outlooks: what a user who follows one would call."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A forecast and what became of it."""

    model: str
    gbps: float
    """What links are shaped to."""
    system: str
    forecast_s: float
    uncertainty: float
    """Relative, as the doctor tells it."""
    measured_s: float
    """The median of all steps and ranks."""
    spread: float
    """Half of the way from the fastest to the slowest turn, over the median."""
    recommended: str
    goodput_gbps: float
    engine_gbps: float
    profiled_s: float
    """Computation of a step, by the doctor's profile."""
    alone_s: float
    """The same, when it was then trained without communication."""
    run_delay: float
    """Of a thread that wants a processor, the share of time that it waited for one, as the doctor found it."""
    environment: dict[str, str]

    @property
    def error(self) -> float:
        return self.forecast_s / self.measured_s - 1


def emulated(name: str) -> Workload:
    """A model of the zoo with the same bytes and times as the others, but its own layers."""
    shape = of_zoo(name)
    return shape.scaled(bytes_by=NUM_BYTES / shape.num_bytes, time_by=COMPUTE_S / shape.compute_s)


def consult(station: crew.Station, launch: Launch) -> tuple[Examination, list[Workload]]:
    """What one rank finds: of the links once, then of each model."""
    torch.set_num_threads(1)
    with launch.job(station.rank) as job:
        examination = examine(job)
    profiles = []
    for name in MODELS:
        station.meet()
        model, inputs = sleeping_model(emulated(name), 1.0), torch.zeros(1, requires_grad=True)
        profiles.append(profile(name, model, inputs, config=ProfileConfig(warmup=1, passes=5)))
    return examination, profiles


def measure(gbps: float) -> Iterator[Comparison]:
    """All models over links of one rate."""
    with Testbed(hosts=NUM_HOSTS, servers=NUM_SERVERS, gbps=gbps) as testbed, surroundings():
        launch = Launch(num_workers=NUM_HOSTS, conductor=testbed.address(0))
        examination, profiles = crew.run(testbed, range(NUM_HOSTS), consult, launch)[0]
        assert examination.links is not None
        settings = read_settings(launch.environment(0))
        prognoses = [foresee(each, examination.links, settings, (NUM_SERVERS,)) for each in profiles]
        assignments = [_assignment(testbed, number, name) for number, name in enumerate(MODELS)]
        seen: dict[int, list[list[Seen]]] = {}

        def heard(_rank: int, told: str | tuple[int, list[Seen]]) -> None:
            if not isinstance(told, str):
                seen.setdefault(told[0], []).append(told[1])

        with ExitStack() as serving:
            for each in (launch for assignment in assignments for launch in assignment.launches):
                serving.enter_context(each.served(testbed))
            crew.follow(testbed, range(NUM_HOSTS), heard, take_turns, assignments)
    where = environment()
    for number, prognosis in enumerate(prognoses):
        yield from _comparisons(gbps, examination, prognosis, seen[number], where)


def _assignment(testbed: Testbed, number: int, model: str) -> Assignment:
    systems = [System(name=ALONE, family=ALONE), *(each for each, _ in SYSTEMS.values())]
    return Assignment(
        systems=systems,
        calls=[None, *(call for _, call in SYSTEMS.values())],
        launches=[
            Launch(
                num_workers=NUM_HOSTS,
                num_servers=NUM_SERVERS if each.uses_servers else 0,
                conductor=testbed.address(0),
                port=PORT + 1 + number * len(systems) + place,
                join_timeout_s=3600.0,  # servers wait from the start until their system has its first turn
            )
            for place, each in enumerate(systems)
        ],
        workload=emulated(model),
        num_workers=NUM_HOSTS,
        address=testbed.address(0),
        num_rounds=NUM_ROUNDS,
        num_steps=NUM_STEPS,
    )


def _comparisons(
    gbps: float, examination: Examination, prognosis: Prognosis, ranks: Sequence[Sequence[Seen]], where: dict[str, str]
) -> Iterator[Comparison]:
    links = examination.links
    assert links is not None
    outlooks = {each.change: each for each in prognosis.outlooks}
    alone_s = _median_s([rank[0] for rank in ranks])
    for place, name in enumerate(SYSTEMS, start=1):
        figures = [rank[place] for rank in ranks]
        measured_s = _median_s(figures)
        turns_s = median_turns([each.turns_s for each in figures])
        yield Comparison(
            model=prognosis.model,
            gbps=gbps,
            system=name,
            forecast_s=outlooks[name].step_s,
            uncertainty=outlooks[name].error or 0.0,
            measured_s=measured_s,
            spread=(max(turns_s) - min(turns_s)) / 2 / measured_s,
            recommended=prognosis.advice.use,
            goodput_gbps=links.gbps,
            engine_gbps=links.engine_gbps or 0.0,
            profiled_s=prognosis.compute_s,
            alone_s=alone_s,
            run_delay=max(facts.run_delay or 0.0 for facts in examination.ranks),
            environment=where,
        )


def _median_s(ranks: Sequence[Seen]) -> float:
    return statistics.median(second for rank in ranks for turn in rank.turns_s for second in turn)


# ---- rows and the table ----


def read(path: Path = RESULTS) -> list[Comparison]:
    return [Comparison(**json.loads(line)) for line in path.read_text().splitlines()]


def table(rows: Sequence[Comparison]) -> str:
    """A line for each model and bandwidth: forecast → measured (error), in ms."""
    cells: dict[tuple[str, float], dict[str, Comparison]] = {}
    for row in rows:
        cells.setdefault((row.model, row.gbps), {})[row.system] = row
    lines = [
        [TITLES.get(model, model), f"{gbps:g}", *(_cell(by_system[name]) for name in SYSTEMS), first.recommended]
        for (model, gbps), by_system in cells.items()
        for first in [by_system["DDP"]]
    ]
    errors = [abs(row.error) for row in rows]
    text = markdown(["model", "Gbit/s", *SYSTEMS, "recommended"], lines)
    delays = [row.run_delay for row in rows]
    return (
        f"{text}\n\nForecast → measured, ms a step, and the error. {len(rows)} forecasts, {len(cells)} cells: "
        f"{sum(error <= TARGET for error in errors)} within {TARGET:.0%}; median error "
        f"{statistics.median(errors):.1%}, largest {max(errors):.1%}. While the doctor looked, "
        f"a busy thread waited for a processor {min(delays):.0%} to {max(delays):.0%} of its time.\n"
    )


def _cell(row: Comparison) -> str:
    return f"{row.forecast_s * 1e3:.0f} → {row.measured_s * 1e3:.0f} ({row.error:+.1%})"


def written_anew(page: str, rows: Sequence[Comparison]) -> str:
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}{table(rows)}{_END}{rest.partition(_END)[2]}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.doctor", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file for the rows, a JSON object a line")
    parser.add_argument("--gbps", type=float, nargs="+", default=GBPS, help="bandwidths; default: all three")
    parser.add_argument("--page", action="store_true", help="only write the table in docs/doctor.md, from the rows")
    arguments = parser.parse_args(argv)
    if not arguments.page:
        acquire_permission()
        old = read(arguments.out) if arguments.out.exists() else []
        begin_s = time.monotonic()
        for gbps in arguments.gbps:
            fresh = list(measure(gbps))
            old = sorted([*(row for row in old if row.gbps != gbps), *fresh], key=lambda row: row.gbps)
            arguments.out.write_text("".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in old))
            print(f"{gbps:g} Gbit/s after {time.monotonic() - begin_s:.0f} s\n{table(fresh)}", flush=True)
    rows = read(arguments.out)
    if arguments.out == RESULTS:
        PAGE.write_text(written_anew(PAGE.read_text(), rows))
    return int(any(abs(row.error) > TARGET for row in rows))


if __name__ == "__main__":
    sys.exit(main())
