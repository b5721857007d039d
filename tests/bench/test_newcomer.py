"""A newcomer who follows small pages: commands share a shell, and what fails is named."""

from pathlib import Path

import pytest

from bench.newcomer import PAGE as QUICKSTART
from bench.newcomer import NewcomerError, follow, steps

PAGE = """
```bash
touch here
learnt=something && . ./activate
```

Save this:

```python
print("hello")
```

```sh
not for newcomers
```

```bash
test "$learnt" = something && test -f train.py && test ! -e here
active
```
"""


def walk(page: str, folder: Path) -> list[str]:
    checkout, own = folder / "checkout", folder / "own"
    for each in (checkout, own):
        each.mkdir()
    (checkout / "activate").write_text('active() { test -n "$HOME"; }\n')
    followed = list(follow(page, checkout, own, folder))
    assert all(seconds > 0 for _, seconds in followed)
    assert (checkout / "here").exists()
    assert (own / "train.py").read_text() == 'print("hello")\n'
    return [command for command, _ in followed]


def test_commands_are_typed_one_after_the_other_and_beside_the_script(tmp_path: Path) -> None:
    assert walk(PAGE, tmp_path) == [step.command for step in steps(PAGE)]


def test_what_fails_is_named_with_what_it_said(tmp_path: Path) -> None:
    page = PAGE.replace("active\n", "echo why; false\n")
    with pytest.raises(NewcomerError, match=r"echo why; false\nwhy\n\nexit status: 1"):
        walk(page, tmp_path)


def test_a_shell_that_ends_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(NewcomerError, match="the shell has ended"):
        walk(PAGE.replace("active\n", "exit 0\n"), tmp_path)


def test_the_quick_start_goes_from_the_demo_to_a_dashboard() -> None:
    commands = [step.command for step in steps(QUICKSTART.read_text())]
    assert commands[:2] == ["make demo", "make wheel"]
    assert any(command.startswith("pip install -c constraints.txt") for command in commands)
    assert any("LEGATO_TIMELINE=" in command for command in commands)
    assert any("LEGATO_DASHBOARD=" in command for command in commands)
    assert "legato trace report run.json" in commands
