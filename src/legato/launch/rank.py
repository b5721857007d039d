"""`python -m legato.launch.rank FOLDER script.py …`: runs a rank's script and, if it fails, notes how.

A job's ranks mostly fail together: one by a mistake, the others because it is gone. So none prints its traceback; the
launcher reads the notes and prints one. The note is written at once: what ends a process may take longer than the
others need to notice.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from legato import compat
from legato.compat import run_script
from legato.errors import ClosedError, DeadlineError, InputError, PeerLostError, SecurityError
from legato.launch.failure import Failure


def main(arguments: Sequence[str]) -> None:
    """Run a script, or a module after -m, as if Python had been started with it."""
    folder, arguments = Path(arguments[0]), arguments[1:]
    try:
        run_script(arguments)
    except SystemExit as error:
        if error.code not in (None, 0):
            code = error.code if isinstance(error.code, int) else 1
            what = f"exit code {code}" if isinstance(error.code, int) else str(error.code)
            _note(folder, Failure(who=_who(), exit_code=code, what=" ".join(what.split())))
        raise
    except Exception as error:
        if os.environ.get("TORCHELASTIC_RESTART_COUNT") != os.environ.get("TORCHELASTIC_MAX_RESTARTS"):
            raise  # torchrun will try again: nobody else reports this one
        _note(folder, _failure(error))
        sys.last_value = error  # as the interpreter does: what runs at exit can tell that the script has failed
        raise SystemExit(1) from None


def _failure(error: Exception) -> Failure:
    """What legato says of settings and keys needs no traceback."""
    is_clear = isinstance(error, InputError | SecurityError)
    said = str(error).splitlines()
    return Failure(
        who=_who(),
        exit_code=1,
        what=f"{type(error).__name__}: {' '.join(said) if is_clear else ''.join(said[:1]):.200}",
        trace="" if is_clear else "".join(traceback.format_exception(_without_runner(error))),
        is_consequence=isinstance(error, PeerLostError | ClosedError | DeadlineError),
    )


def _without_runner(error: Exception) -> Exception:
    """The traceback from the script on."""
    trace = error.__traceback__
    runners = (__file__, compat.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in runners:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _who() -> str:
    return f"rank {os.environ.get('RANK', '?')}"


def _note(folder: Path, failure: Failure) -> None:
    path = folder / f"{failure.who.replace(' ', '-')}.json"
    new = path.with_suffix(".new")
    new.write_text(failure.json())
    new.rename(path)


if __name__ == "__main__":
    main(sys.argv[1:])
