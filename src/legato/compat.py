"""`python -m legato.compat script.py …`: runs a script written for Horovod, BytePS or ByteScheduler as it is.

The modules that such a script imports are legato's, in this process only: nothing is installed, and an installed
Horovod stays out of the way. `-m package.module` in place of a file works as it does for Python itself.
"""

import importlib
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from legato.errors import InputError

MODULES = {
    "byteps": "legato.byteps",
    "byteps.torch": "legato.byteps.torch",
    "byteps.torch.compression": "legato.torch.compression",
    "byteps.torch.cross_barrier": "legato.byteps.torch.cross_barrier",
    "byteps.torch.ops": "legato.byteps.torch.ops",
    "byteps.torch.parallel": "legato.byteps.torch.parallel",
    "bytescheduler": "legato.bytescheduler",
    "bytescheduler.pytorch": "legato.bytescheduler.pytorch",
    "bytescheduler.pytorch.horovod": "legato.bytescheduler.pytorch.horovod",
    "horovod": "legato.horovod",
    "horovod.common": "legato.horovod.common",
    "horovod.common.elastic": "legato.horovod.common.elastic",
    "horovod.common.exceptions": "legato.horovod.common.exceptions",
    "horovod.common.process_sets": "legato.horovod.common.process_sets",
    "horovod.torch": "legato.horovod.torch",
    "horovod.torch.compression": "legato.horovod.torch.compression",
    "horovod.torch.elastic": "legato.horovod.torch.elastic",
    "horovod.torch.elastic.sampler": "legato.horovod.torch.elastic.sampler",
    "horovod.torch.elastic.state": "legato.horovod.torch.elastic.state",
    "horovod.torch.mpi_ops": "legato.horovod.torch.mpi_ops",
}
"""What scripts import, and what they get."""
_ROOTS = {name.partition(".")[0] for name in MODULES}


class Finder(MetaPathFinder):
    """Finds the modules of the table before anybody else does, and nothing else under their roots."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] not in _ROOTS:
            return None
        if fullname not in MODULES:
            raise ModuleNotFoundError(
                f"legato.compat does not provide {fullname}; it has {', '.join(sorted(MODULES))}", name=fullname
            )
        return ModuleSpec(fullname, Alias(MODULES[fullname]), is_package=True)


class Alias(Loader):
    """Loads a module under another name: the same module, not a copy."""

    def __init__(self, module: str) -> None:
        self._module = module

    def exec_module(self, module: ModuleType) -> None:
        # What is in sys.modules after this is what the import gives, and what it makes an attribute of its parent.
        assert module.__spec__ is not None
        sys.modules[module.__spec__.name] = importlib.import_module(self._module)


def provide() -> None:
    """Provide the modules of the table in this process."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


def run_script(arguments: Sequence[str]) -> None:
    """Run a script, or a module after -m, as if Python had been started with it."""
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path[0] = str(Path.cwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = Path(arguments[0])
    if not script.is_file():
        raise InputError(f"{script} is not a file; give a script, or -m and a module")
    sys.argv = list(arguments)
    sys.path[0] = str(script.resolve().parent)  # where Python looks first for what a script imports
    runpy.run_path(str(script), run_name="__main__")


def main(arguments: Sequence[str]) -> None:
    """Run a script that finds legato under its predecessors' names."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        print("usage: python -m legato.compat script.py [argument ...]", file=sys.stderr)
        print("       python -m legato.compat -m package.module [argument ...]", file=sys.stderr)
        raise SystemExit(0 if arguments and arguments[0] != "-m" else 2)
    provide()
    if arguments[0] != "-m" and not Path(arguments[0]).is_file():
        print(f"legato.compat: {arguments[0]} is not a file; give it a script, or -m and a module", file=sys.stderr)
        raise SystemExit(2)
    run_script(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
