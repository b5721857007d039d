"""The demo: two workers train the same model by torch's DDP and by legato, over the same links: `make demo`.

The links are made in the best way that this user is allowed, and the demo says which:

    root                       network namespaces on this machine, their links shaped (bench/testbed/testbed.py)
    user namespaces are open   the same, inside a user namespace of the demo's own
    neither                    the loopback; the kernel limits each of the demo's connections (bench/testbed/pacing.py)

Links are so fast that communication takes as long as computation on this machine, at most 1 Gbit/s: there scheduling
matters most. Whatever the demo makes is gone when it ends. What stays is a page with both systems' steps, one above the
other.
"""

import argparse
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from bench.comparison import Comparison, compare
from bench.contest import Contest, System, compete
from bench.pictures import page, screenshot, terminal
from bench.testbed import crew, goodput
from bench.testbed.loopback import Loopback
from bench.testbed.namespace import acquire_permission, is_obtainable, is_permitted
from bench.testbed.testbed import Testbed

Way = Literal["auto", "namespaces", "sockets"]
_WHOLE = 2**32 - 1
"""Users that the system's own user namespace has."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """How hosts are connected."""

    testbed: Testbed
    interface: str
    is_paced: bool
    """Whether ranks limit their own connections."""
    about: str


def main(argv: Sequence[str] | None = None) -> int:
    """0 when both have trained the same, however fast."""
    options = _arguments(argv)
    if options.links == "auto" and not is_permitted() and is_obtainable():
        acquire_permission()  # does not come back: the demo begins anew, and is permitted
    # The hosts have no name service, of which torch warns from C++ as soon as a worker imports it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    console = Console(highlight=False)
    links = _links(options.links, options.hosts)
    console.print(f"{options.hosts} workers, {links.about}; each system has its turn in every round", soft_wrap=True)
    folder = _folder()
    with links.testbed as testbed:
        contest = Contest(
            num_workers=options.hosts,
            addresses=tuple(testbed.address(host) for host in range(options.hosts)),
            interface=links.interface,
            key=secrets.token_hex(),
            num_rounds=options.rounds,
            num_steps=options.steps,
            batch=options.batch,
            hidden=options.hidden,
            gbps=options.gbps,
            is_paced=links.is_paced,
            folder=folder,
        )
        rates: list[float] = []

        def hear(_: int, gbps: float) -> None:
            if not rates:
                console.print(f"links of {gbps:.2f} Gbit/s")
                if not links.is_paced:
                    testbed.set_rate(gbps)
            rates.append(gbps)

        outcomes = crew.follow(testbed, range(options.hosts), hear, compete, contest)
    measured = goodput.gather([outcome.received for outcome in outcomes])
    comparison = compare(outcomes, measured.bytes_per_s)
    console.print(_systems(comparison), _limits(comparison, measured.bytes_per_s))
    for line in terminal(contest.recordings, width=min(console.width, 100)):
        console.print(line, soft_wrap=True)
    console.print(comparison.verdict())
    drawn = folder / "demo.html"
    subtitle = f"{options.hosts} workers, {rates[0]:.2f} Gbit/s: {links.about}"
    drawn.write_text(page(contest.recordings, comparison, subtitle))
    console.print(f"Both steps in full: {drawn}", soft_wrap=True)
    if options.picture is not None:
        screenshot(drawn, options.picture)
    return int(not comparison.same_training)


def _links(way: Way, hosts: int) -> Links:
    """The best ones that are permitted; the process has acquired what it can."""
    if way == "namespaces" or (way == "auto" and is_permitted()):
        about = "shaped links between network namespaces"
        if _is_borrowed():
            about += ", made without root in a user namespace"
        return Links(testbed=Testbed(hosts=hosts), interface="eth0", is_paced=False, about=about)
    why = "as asked" if way == "sockets" else "this user may make no network namespaces"
    about = f"on the loopback, where the kernel limits the rate of each connection ({why})"
    return Links(testbed=Loopback(hosts=hosts), interface="lo", is_paced=True, about=about)


def _is_borrowed() -> bool:
    """Whether this process is root in a user namespace only."""
    return int(Path("/proc/self/uid_map").read_text().split()[2]) < _WHOLE


def _folder() -> Path:
    """Where what is made can stay."""
    folder = Path("build/demo")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "demo.html").write_text("")
    except OSError:  # somebody else's checkout
        return Path(tempfile.mkdtemp(prefix="legato-demo-"))
    return folder.resolve()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--gbps", type=float, help="rate of the links; else what matches the computation, at most 1")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="measured steps of a turn, after one that is not")
    parser.add_argument("--batch", type=int, default=16, help="images of each worker and step")
    parser.add_argument("--hidden", type=int, default=2048, help="width of the fully connected layers")
    parser.add_argument(
        "--links", choices=["auto", "namespaces", "sockets"], default="auto", help="how links are limited"
    )
    parser.add_argument("--picture", type=Path, help="also write the page as a PNG, and one for dark pages beside it")
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
