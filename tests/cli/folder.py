"""A folder with a script, as a user of `legato run` has it.

Ranks are unbuffered (`python -u`, as torchrun starts them) and share a pipe, and an unbuffered `print` writes the end
of a line by itself. So scripts of which several ranks print write whole lines: `print("…\\n", end="")`.
"""

import contextlib
import os
from pathlib import Path

from tests.programs import Program, Programs


class Folder:
    """A folder with a script, and what runs by it."""

    def __init__(self, path: Path, script: str, programs: Programs) -> None:
        self.path = path
        self._programs = programs
        self.script = path / "train.py"
        self.script.write_text(script)

    def start(self, *arguments: str, **environ: str) -> Program:
        environ = {**os.environ, "OF_TEST": str(self.path), **environ}
        return self._programs.start("-m", "legato.cli", "run", *arguments, cwd=self.path, env=environ)

    def run(self, *arguments: str, **environ: str) -> tuple[int, list[str], list[str]]:
        """The exit code, and the lines of stdout and stderr; nothing is left."""
        with self.start(*arguments, **environ) as process:
            output, errors = process.communicate(timeout=250)
        assert self.left() == []
        return process.wait(), sorted(output.splitlines()), errors.splitlines()

    def left(self) -> list[str]:
        """Command lines of what still runs."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"OF_TEST={self.path}".encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text().replace("\0", " "))
        return found
