"""Every figure that the native engine must show, in one run: `python -m bench.engine [section ...]`.

Sections: exactness, loopback, links, wire, hosts, preemption, steps, codecs, rows, stragglers; all of them by default.
They measure the engine alone, without a framework, except codecs and stragglers, which train through `legato.torch`.
Figures go to the screen as a table and, with --out, to a file as JSON lines, each as soon as it is there.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.report import Figure, publish
from bench.sections import codecs, exactness, hosts, links, loopback, preemption, rows, steps, stragglers, wire
from bench.testbed.namespace import acquire_permission

SECTIONS: dict[str, Callable[[], Iterator[Figure]]] = {
    "exactness": exactness.measure,
    "loopback": loopback.measure,
    "links": links.measure,
    "wire": wire.measure,
    "hosts": hosts.measure,
    "preemption": preemption.measure,
    "steps": steps.measure,
    "codecs": codecs.measure,
    "rows": rows.measure,
    "stragglers": stragglers.measure,
}


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every target is met, 1 otherwise; 77 where hosts cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    # [] is among the choices because argparse, before Python 3.12, checks an empty list as if it were one.
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="what to measure (default: everything)")
    parser.add_argument("--out", type=Path, help="append the figures to this file, a JSON object a line")
    arguments = parser.parse_args(argv)
    acquire_permission()
    sections = arguments.sections or SECTIONS
    return publish((figure for section in sections for figure in SECTIONS[section]()), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
