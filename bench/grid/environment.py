"""Where rows were measured: enough to tell whether two files can be compared."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """Machine, software, commit and date."""
    return {
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "kernel": platform.release(),
        "tcp": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def commit() -> str:
    """The commit of this checkout, with a plus where files differ from it."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", _ROOT, *arguments], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()
