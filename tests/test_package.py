"""`import legato` is light: it has no effects and pulls in no framework."""

import subprocess
import sys

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet", "typer", "rich")


def test_importing_legato_imports_no_framework() -> None:
    code = f"import legato, sys; print([name for name in {FRAMEWORKS!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
