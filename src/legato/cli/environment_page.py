"""docs/environment.md, made from the model of settings (variables.py, launchers.py, predecessors.py)."""

import re
from collections.abc import Iterable, Mapping

from legato.launchers import UNKNOWN_LAUNCHERS, VARIABLES
from legato.predecessors import OF_LAUNCHERS, PREFIXES, WITHOUT_EFFECT, Idle
from legato.variables import PREFIX, SETTINGS, Alias, Group, Setting

_INTRODUCTION = """\
# Settings

<!-- Made by `make environment-page` from src/legato/variables.py, launchers.py and predecessors.py. -->

Every setting has a variable, such as `LEGATO_TIMEOUT_S`, and a key in `legato.toml`, `timeout_s`. A value given in code
wins, then the environment, then the file, then the default. `legato config show` prints every value and where it comes
from; `--json` prints the same for programs.

A wrong value ends the program with one line that names the variable, its value and what is accepted. So does a variable
that is nearly one of these: `LEGATO_TIMEOUT is not a variable of legato; did you mean LEGATO_TIMEOUT_S?` Any other
variable that begins with `LEGATO_` gets a warning.

`legato.toml` is looked for in the working folder and, within a git repository, in the folders above it up to the
repository's root; the nearest counts. `LEGATO_CONFIG` names another one. Its keys are the variables of the tables
below, in lower case and without `LEGATO_`; paths in it start from the working folder. An unknown key is an error.

```toml
policy = "bytescheduler"
partition_bytes = "256KiB"
timeout_s = 300
shared_memory = false
```

Names that BytePS, ByteScheduler and Horovod have for a setting are understood, with a warning that says what they are
taken for. Those that their launchers set get none.
"""
_PLACES = """\
## Where am I

The variables of the innermost launcher that has set any count: torchrun, BytePS (`DMLC_*`), Horovod, Open MPI,
MVAPICH2, MPICH and Intel MPI, Slurm. `init` logs at INFO which rank the process is and how it knows: `rank 1 of 4, told
by torchrun (RANK, WORLD_SIZE)`. If the process is alone although some variable of a launcher is set, it logs a warning.
Launchers that set {unknown},
and nothing in the table below, are refused: set torchrun's variables yourself.
"""
_WITHOUT_EFFECT = """\
## Variables without effect

What else Horovod, BytePS and ByteScheduler read is checked, so that a wrong value is an error here too, and named once
in the log with the reason: as a warning, or at INFO for the second table, which horovodrun sets by itself. A variable
that begins like theirs and is in no table of this page is named as unknown.
"""


def environment_page() -> str:
    """The page's text."""
    sections = [_INTRODUCTION]
    for group in Group:
        rows = [_setting(setting) for setting in SETTINGS.values() if setting.group is group]
        sections.append(f"## {group}\n\n" + _table("variable | meaning | predecessors' names | default", rows))
    unknown = [f"`{name}`" for name in UNKNOWN_LAUNCHERS]
    sections.append(_PLACES.format(unknown=f"{', '.join(unknown[:-1])} or {unknown[-1]}"))
    places = [(_names(row.names), row.of, row.meaning, row.default) for row in VARIABLES]
    sections.append(_table("variable | of | meaning | default", places))
    sections.append(_WITHOUT_EFFECT)
    sections.append(_table("variable | why", _idle(WITHOUT_EFFECT)))
    sections.append(_table("variable, set by horovodrun | why", _idle(OF_LAUNCHERS)))
    return "\n".join(sections)


def _setting(setting: Setting[object]) -> tuple[str, ...]:
    not_in_file = "" if setting.in_file else "; only in the environment"
    aliases = "; ".join(map(_alias, setting.aliases))
    return f"`{setting.variable}`", setting.meaning + not_in_file, aliases, setting.default


def _alias(alias: Alias[object]) -> str:
    return _names(alias.names) + (f" ({alias.note})" if alias.note else "")


def _idle(variables: Mapping[str, Idle]) -> Iterable[tuple[str, str]]:
    """Those with the same reason share a row."""
    reasons: dict[str, list[str]] = {}
    for name, idle in variables.items():
        reasons.setdefault(idle.why, []).append(name)
    for why, names in reasons.items():
        marked = re.sub(rf"\b((?:{'|'.join((PREFIX, *PREFIXES))})[A-Z0-9_]+)", r"`\1`", why)
        yield _names(names), marked.replace("(docs/tuning.md)", "([tuning.md](tuning.md))")


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(columns: str, rows: Iterable[tuple[str, ...]]) -> str:
    rule = "|".join("---" for _ in columns.split(" | "))
    lines = [f"| {columns} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"
