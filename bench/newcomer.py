"""A newcomer's way, timed: `python -m bench.newcomer [--user nobody] [--out FILE]`; a quarter of an hour.

Follows docs/quickstart.md to the letter, in a fresh clone of what is committed here and with an empty home (no caches,
no environment but the system's Python): every command of the page, in its order and in one shell; those above the
script in the checkout, the others beside the script, in a folder of the newcomer's own. A command that serves a
dashboard is left running until its page is there and tells of a step, and is then interrupted. With --user, which
needs root, all of it as that user. Nothing stays behind but the figures.

What pip needs to know of this machine (an index, a proxy) it takes from the environment, as ever.
"""

import argparse
import json
import os
import pwd
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

from bench.report import Figure, publish

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/quickstart.md"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVED = re.compile(r"\bLEGATO_DASHBOARD=(\d+)")
TIMEOUT_S = 1800.0
"""Of one command."""
_PAGE_S = 120.0
_LEFT_OUT = ("PYTHON", "VIRTUAL_ENV", "LEGATO_", "XDG_")
"""Of this process' environment."""


class NewcomerError(RuntimeError):
    """A command of the page failed."""


class Step(NamedTuple):
    """Something that the page says to do."""

    command: str
    script: str | None = None
    """What to save as train.py before."""


def steps(page: str) -> list[Step]:
    """The commands of a page, in its order."""
    found = []
    script = None
    for language, text in BLOCK.findall(page):
        if language == "python":
            script = text
            continue
        for line in text.splitlines():
            found.append(Step(line, script))
            script = None
    return found


class Shell:
    """A shell in which one command is typed after the other."""

    def __init__(self, folder: Path, user: pwd.struct_passwd | None, home: Path, log: BinaryIO) -> None:
        """`log` gets what commands print."""
        self._log = log
        self._answers, self._answers_there = os.pipe()
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
        environ |= {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"}
        as_user = () if user is None else (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
        self._process = subprocess.Popen(
            ["setpriv", *as_user, "bash", "--norc"],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(self._answers_there,),
            start_new_session=True,
        )
        os.close(self._answers_there)

    def run(self, command: str) -> float:
        """Seconds that it took."""
        begin_s = time.monotonic()
        self._type(f"{{ {command}\n}} </dev/null\necho $? >&{self._answers_there}\n")
        ready, _, _ = select.select([self._answers], [], [], TIMEOUT_S)
        status = os.read(self._answers, 100).decode().strip() if ready else "no answer"
        if status != "0":
            raise NewcomerError(f"{command}\n{self._said()}\nexit status: {status or 'the shell has ended'}")
        return time.monotonic() - begin_s

    def watch(self, command: str, port: int) -> float:
        """Seconds until a command that goes on serves a page that tells of a step; it is ended then."""
        begin_s = time.monotonic()
        self.run(f"{command} &")
        while not tells_of_a_step(port):
            if time.monotonic() - begin_s > _PAGE_S:
                raise NewcomerError(f"{command}\n{self._said()}\nno page at port {port} after {_PAGE_S:g} s")
            time.sleep(0.1)
        seconds = time.monotonic() - begin_s
        self.run("kill $!; wait $! || true")
        return seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            os.killpg(self._process.pid, signal.SIGTERM)  # with what it has started
        self._process.communicate(timeout=TIMEOUT_S)  # the shell ends with its commands
        os.close(self._answers)

    def _type(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def _said(self) -> str:
        """The end of what commands have printed."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-3000:]


def tells_of_a_step(port: int) -> bool:
    """Whether a dashboard is there, and has something to show."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as page:
            is_page = b"<title>legato" in page.read()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=5) as state:
            return is_page and any(job["points"] for job in json.load(state).values())
    except OSError:
        return False


def follow(
    page: str, checkout: Path, own: Path, home: Path, user: pwd.struct_passwd | None = None
) -> Iterator[tuple[str, float]]:
    """Do what the page says: each command, and the seconds that it took."""
    with TemporaryFile() as log, Shell(checkout, user, home, log) as shell:
        for step in steps(page):
            if step.script is not None:
                (own / "train.py").write_text(step.script)
                shell.run(f"cd {own}")
            served = SERVED.search(step.command)
            seconds = shell.run(step.command) if served is None else shell.watch(step.command, int(served[1]))
            yield step.command, seconds


def measure(user: pwd.struct_passwd | None) -> Iterator[Figure]:
    """From a clone to the last command, and all of it."""
    name = pwd.getpwuid(os.geteuid()).pw_name if user is None else user.pw_name
    with TemporaryDirectory(prefix="legato-newcomer-") as place:
        folder = Path(place)
        checkout, own, home = (folder / each for each in ("legato", "own", "home"))
        begin_s = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
        yield _figure(name, "git clone", time.monotonic() - begin_s)
        own.mkdir()
        home.mkdir()
        if user is not None:
            subprocess.run(["chown", "-R", f"{user.pw_uid}:{user.pw_gid}", folder], check=True)
        for command, seconds in follow(PAGE.read_text(), checkout, own, home, user):
            yield _figure(name, command, seconds)
        if not (own / "run.html").exists():
            raise NewcomerError("the page promises a report in run.html, and there is none")
        yield _figure(name, "all of it", time.monotonic() - begin_s)


def _figure(name: str, command: str, seconds: float) -> Figure:
    return Figure(section="newcomer", case=f"{name}: {command}", value=seconds, unit="s")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.newcomer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--user", type=pwd.getpwnam, help="who follows the page; else who runs this")
    parser.add_argument("--out", type=Path, help="append the figures to this file, a JSON object a line")
    arguments = parser.parse_args(argv)
    return publish(measure(arguments.user), arguments.out)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing stays behind
    try:
        sys.exit(main())
    except NewcomerError as error:
        sys.exit(str(error))
