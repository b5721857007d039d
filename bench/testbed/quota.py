"""A quota on processors, by a cgroup: what makes a host a straggler.

A cgroup outlives its owner, unlike a namespace: its name carries the owner's pid, and `clean` removes what dead owners
left. Both versions of cgroups are known; version 1 is where the two differ in a file's name.
"""

import os
import re
import tempfile
from pathlib import Path

_PERIOD_US = 100_000
_NAME = re.compile(r"lg(\d+)\..+")
ROOT = Path("/sys/fs/cgroup")
HELP = "a quota on processors needs a cgroup with a cpu controller that this user may write to (root mostly can)"


class QuotaError(RuntimeError):
    """This user may not make a quota here; the message is one line that says what would help."""


class Quota:
    """A group of processes that share `cpus` processors at most."""

    def __init__(self, cpus: float, root: Path = ROOT) -> None:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=f"lg{os.getpid()}.", dir=_parent(root)))
        except OSError as error:
            raise QuotaError(HELP) from error
        self.set(cpus)

    def set(self, cpus: float) -> None:
        """Change how many processors they share."""
        if not cpus > 0:
            raise ValueError(f"cpus must be above 0, not {cpus}")
        quota_us = max(round(cpus * _PERIOD_US), 1000)  # the kernel's least
        first = self._folder / "cpu.cfs_quota_us"
        if first.exists():
            first.write_text(str(quota_us))
        else:
            (self._folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")

    def add(self, pid: int) -> None:
        """Put a process under the quota, with all of its threads and whatever it starts from now on."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Remove the group; nobody may be in it any more."""
        self._folder.rmdir()


def clean(root: Path = ROOT) -> list[str]:
    """Remove the groups whose owner is gone; the answer is their names. Others' groups are left alone."""
    removed = []
    parent = _parent(root)
    for folder in sorted(parent.glob("lg*")) if parent.is_dir() else ():
        found = _NAME.fullmatch(folder.name)
        if found is not None and not Path(f"/proc/{found[1]}").exists():
            folder.rmdir()  # whoever was in it died with the owner
            removed.append(folder.name)
    return removed


def _parent(root: Path) -> Path:
    """Where groups with a quota can be made: version 1 has a tree for each controller."""
    return root / "cpu" if (root / "cpu" / "cpu.cfs_period_us").exists() else root
