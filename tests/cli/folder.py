"""A folder with a script, as a user of `legato run` has it."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path


class Folder:
    """A folder with a script, and what runs by it."""

    def __init__(self, path: Path, script: str) -> None:
        self.path = path
        self.script = path / "train.py"
        self.script.write_text(script)

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "legato.cli", "run", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.path,
            env={**os.environ, "OF_TEST": str(self.path), **environ},
        )

    def run(self, *arguments: str, **environ: str) -> tuple[int, list[str], list[str]]:
        """The exit code, and the lines of stdout and stderr; nothing is left."""
        with self.start(*arguments, **environ) as process:
            output, errors = process.communicate(timeout=100)
        assert self.left() == []
        return process.returncode, sorted(output.splitlines()), errors.splitlines()

    def left(self) -> list[str]:
        """Command lines of what still runs."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"OF_TEST={self.path}".encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text().replace("\0", " "))
        return found
