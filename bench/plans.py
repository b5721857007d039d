"""Plans measured on the testbed, to fine-tune AutoByte's network with: `python -m bench.plans FILE`.

Profiles of the zoo on 4 hosts, scaled to 25 MB and 315 ms of computing, as in `bench.live`; each plan for some steps,
one after the other. `legato tune refine` reads the file.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import live
from bench.testbed import goodput
from bench.testbed.namespace import acquire_permission
from bench.testbed.testbed import Testbed
from legato.tuning.candidate import Space

MODELS = ("vgg16", "resnet50", "densenet121", "bert-base", "gpt2")
GBPS = (1.0, 0.5)
SPACE = Space(
    policies=("bytescheduler",),
    partition_bytes=tuple(live.KIB << power for power in range(6, 14)),
    credit_parts=(1, 4, 16),
)
"""64 KiB to 8 MiB."""


def measure() -> list[dict[str, object]]:
    """A row for each model and bandwidth: the job, its links, and what a step takes under each plan."""
    plans = list(SPACE)
    jobs = [(model, gbps) for model in MODELS for gbps in GBPS]
    with Testbed(hosts=live.NUM_HOSTS, gbps=live.HIGH) as testbed:
        reached = goodput.measure(testbed).bytes_per_s * 8e-9 / live.HIGH
        outcomes = live.run_all(testbed, [live.plans_in_turn(plans, gbps, model) for model, gbps in jobs])
    return [
        {
            "model": model,
            "num_bytes": live.NUM_BYTES,
            "compute_s": live.COMPUTE_S,
            "workers": live.NUM_HOSTS,
            "gbps": gbps * reached,
            "plans": [
                [plan.policy, plan.partition_bytes, plan.credit_bytes, seconds]
                for plan, seconds in live.times_of(plans, outcome).items()
            ],
        }
        for (model, gbps), outcome in zip(jobs, outcomes, strict=True)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.plans", description=__doc__)
    parser.add_argument("file", type=Path, help="where the rows are left, as JSON")
    arguments = parser.parse_args(argv)
    acquire_permission()
    path: Path = arguments.file
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in measure()) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
