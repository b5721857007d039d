"""The demo: two workers train the same model by torch's DDP and by legato, over links of 1 Gbit/s: `make demo`.

Hosts are network namespaces on this machine (bench/testbed/testbed.py), gone when the demo ends. Where those are not
permitted, the workers talk over the loopback, which nobody slows down, and the demo says so.
"""

import argparse
import os
import secrets
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.comparison import Comparison, compare
from bench.contest import Contest, System, compete
from bench.testbed import crew, goodput
from bench.testbed.loopback import Loopback
from bench.testbed.namespace import is_permitted
from bench.testbed.testbed import Testbed


def main(argv: Sequence[str] | None = None) -> int:
    """0 when both have trained the same, however fast."""
    options = _arguments(argv)
    # The hosts have no name service, of which torch warns from C++ as soon as a worker imports it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    console = Console(highlight=False)
    loopback = options.loopback or not is_permitted()
    if loopback:
        links = "loopback, not shaped" + ("" if options.loopback else ": this user may not make network namespaces")
    else:
        links = f"links of {options.gbps:g} Gbit/s"
    console.print(f"{options.hosts} workers, {links}; each system has its turn in every round")
    make = Loopback if loopback else Testbed
    with make(hosts=options.hosts, gbps=options.gbps) as testbed:
        measured = goodput.measure(testbed)
        contest = Contest(
            num_workers=options.hosts,
            address=testbed.address(0),
            interface="lo" if loopback else "eth0",
            key=secrets.token_hex(),
            num_rounds=options.rounds,
            num_steps=options.steps,
            batch=options.batch,
            hidden=options.hidden,
        )
        outcomes = crew.run(testbed, range(options.hosts), compete, contest)
    comparison = compare(outcomes, measured.bytes_per_s)
    console.print(_systems(comparison), _limits(comparison, measured.bytes_per_s))
    console.print(comparison.verdict())
    return int(not comparison.same_training)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.demo", description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--gbps", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="measured steps of a turn, after one that is not")
    parser.add_argument("--batch", type=int, default=16, help="images of each worker and step")
    parser.add_argument("--hidden", type=int, default=2048, help="width of the fully connected layers")
    parser.add_argument("--loopback", action="store_true", help="no namespaces, no shaping")
    return parser.parse_args(argv)


def _systems(comparison: Comparison) -> Table:
    title = f"{comparison.num_bytes / 4e6:.1f} M parameters on real digits"
    columns: dict[System, str] = {"ddp": "DDP over Gloo", "fifo": "legato, fifo", "legato": "legato"}
    table = Table("", *columns.values(), title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("loss after the same steps", *(f"{comparison.loss[system]:.6f}" for system in columns))
    table.add_row("step", *(_ms(comparison.step_s[system]) for system in columns))
    table.add_row("speed-up, median of rounds", *(f"{comparison.speedup[system]:.2f}" for system in columns))
    table.add_row("over T*", *(f"{comparison.step_s[system] / comparison.bound_s:.2f}" for system in columns))
    table.add_row("processor time of a worker", *(_ms(comparison.cpu_s[system]) for system in columns))
    return table


def _limits(comparison: Comparison, bytes_per_s: float) -> Table:
    table = Table("", "", title="The limits, measured in the same run", show_header=False)
    table.columns[1].justify = "right"
    table.add_row("compute alone", _ms(comparison.step_s["alone"]))
    table.add_row("  forward with update; backward", f"{_ms(comparison.forward_s)}; {_ms(comparison.backward_s)}")
    table.add_row("goodput of raw TCP", f"{bytes_per_s * 8e-9:.2f} Gbit/s")
    table.add_row("communication alone, at that goodput", _ms(comparison.communication_s))
    table.add_row("shortest step, overlap with backward alone", _ms(comparison.backward_only_s))
    table.add_row("T*, with layer times measured by hooks", _ms(comparison.bound_s))
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
