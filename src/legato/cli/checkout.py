"""Commands whose work is done in bench/, which only a checkout of legato has."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from legato.errors import InputError

CHECKOUT = Path(__file__).resolve().parents[3]
_EXTRAS = {"plotly": "bench", "pyroute2": "bench", "torch": "bench", "optuna": "tune"}
"""Which extra brings a package that bench/ needs."""


def from_checkout(module: str, *, command: str, checkout: Path = CHECKOUT) -> ModuleType:
    """A module of bench/; what is missing for it is said in one line."""
    if not (checkout / "bench").is_dir():
        raise InputError(f"{command}: the recipes are in bench/ of a checkout of legato; this installation has none")
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        raise InputError(f"{command}: it needs {missing}; pip install 'legato[{_EXTRAS[missing]}]'") from None
