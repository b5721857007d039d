"""The package: `import legato` is light, it has no effects and pulls in no framework; one version everywhere."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import legato
from legato.cli import main

ROOT = Path(__file__).parents[1]

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet", "typer", "rich")


def test_importing_legato_imports_no_framework() -> None:
    code = f"import legato, sys; print([name for name in {FRAMEWORKS!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_the_version_is_the_same_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    released = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released is not None
    assert main(["--version"]) == 0
    assert {project["version"], released[1], capsys.readouterr().out.strip()} == {legato.__version__}


def test_every_framework_has_an_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rooms = {path.parent.name for path in (ROOT / "src/legato").glob("*/__init__.py")}
    frameworks = {"torch", "tensorflow", "keras", "jax", "mxnet"}
    assert frameworks <= rooms
    assert {*frameworks, "lightning"} <= extras.keys()
