"""torchrun's command line."""

from collections.abc import Sequence

from torch.distributed.run import get_args_parser

from legato.errors import InputError


def run_by(module: str, arguments: Sequence[str]) -> list[str]:
    """The same command line, whose script is run by a module that is given the script, or -m and a module."""
    parsed = get_args_parser().parse_args(list(arguments))
    if parsed.no_python:
        raise InputError(f"--no-python: {module} runs Python scripts")
    position = len(arguments) - 1 - len(parsed.training_script_args)
    options, script = list(arguments[:position]), list(arguments[position:])
    # With -m among torchrun's options, what comes next is a module already.
    return [*options, module, "-m", *script] if parsed.module else [*options, "-m", module, *script]
