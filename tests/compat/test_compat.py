"""Unmodified scripts of all three kinds under `python -m legato.compat`, started as each one's launcher would."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from legato.compat import MODULES
from legato.testing.ports import free_port
from tests.programs import Program, Programs

SCRIPTS = Path(__file__).parent / "scripts"


def horovodrun(rank: int, port: int) -> dict[str, str]:
    place = {"HOROVOD_RANK": rank, "HOROVOD_SIZE": 2, "HOROVOD_LOCAL_RANK": rank, "HOROVOD_LOCAL_SIZE": 2}
    return {name: str(value) for name, value in {**place, "HOROVOD_GLOO_RENDEZVOUS_PORT": port}.items()}


def bpslaunch(rank: int, port: int) -> dict[str, str]:
    """Two processes on one machine."""
    root = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": port, "DMLC_NUM_SERVER": 0, "DMLC_ROLE": "worker"}
    place = {"DMLC_NUM_WORKER": 1, "DMLC_WORKER_ID": 0, "BYTEPS_LOCAL_RANK": rank, "BYTEPS_LOCAL_SIZE": 2}
    return {name: str(value) for name, value in {**root, **place}.items()}


def mpirun(rank: int, port: int) -> dict[str, str]:
    names = ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")
    place = zip(names, (rank, rank, 2, 2), strict=True)
    return {"MASTER_PORT": str(port), **{f"OMPI_COMM_WORLD_{name}": str(value) for name, value in place}}


def start(programs: Programs, arguments: list[str], variables: dict[str, str]) -> Program:
    environ = {"OMP_NUM_THREADS": "1", "LEGATO_HEARTBEAT_S": "30", **variables}
    return programs.start("-m", "legato.compat", *arguments, env={**os.environ, **environ})


def losses(process: Program, size: int) -> list[float]:
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return [float(loss) for loss in re.findall(rf"loss (\d+\.\d+) of {size}", output)]


@pytest.mark.parametrize(
    ("script", "launch", "num_losses"),
    [("horovod_way.py", horovodrun, 1), ("byteps_way.py", bpslaunch, 3), ("bytescheduler_way.py", mpirun, 1)],
)
def test_two_workers_reach_the_loss_of_one_with_the_joined_batch(
    programs: Programs, script: str, launch: Callable[[int, int], dict[str, str]], num_losses: int
) -> None:
    port = free_port()
    path = str(SCRIPTS / script)
    alone = start(programs, [path, "--batch-size", "8"], {})
    workers = [start(programs, [path, "--batch-size", "4"], launch(rank, port)) for rank in range(2)]
    first, second = (losses(worker, 2) for worker in workers)
    assert len(first) == num_losses
    assert first == pytest.approx(losses(alone, 1), abs=1e-10)
    assert second == []


def test_the_modules_are_provided_in_that_process_only(programs: Programs, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    beside = tmp_path / "beside.py"
    beside.write_text("value = 3\n")
    imports = "\n".join(f"import {name}" for name in MODULES)
    script.write_text(
        f"import sys\n{imports}\nimport beside, legato.horovod.torch as ours\n"
        "assert horovod.torch is ours is sys.modules['horovod.torch']\n"
        "assert ours.__name__ == ours.__spec__.name == 'legato.horovod.torch'\n"
        "try:\n    import horovod.tensorflow\nexcept ImportError as error:\n    print(error)\n"
        "print(sys.argv, __name__, beside.value)\n"
    )
    code, output, errors = programs.run("-m", "legato.compat", str(script), "-m", "x")
    assert code == 0, errors
    refusal, last = output.splitlines()
    assert refusal.startswith("legato.compat does not provide horovod.tensorflow; it has byteps, byteps.torch")
    assert last == f"['{script}', '-m', 'x'] __main__ 3"
    code, _, errors = programs.run(str(script))
    assert code == 1
    assert "No module named 'byteps'" in errors


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "usage: "),
        (["--help"], 0, "usage: "),
        (["nowhere.py"], 2, "nowhere.py is not a file; give it a script, or -m and a module"),
    ],
)
def test_what_is_not_a_script_is_said_in_a_line(
    programs: Programs, arguments: list[str], code: int, words: str
) -> None:
    found, _, errors = programs.run("-m", "legato.compat", *arguments)
    assert found == code
    assert words in errors


def test_a_module_is_run_by_its_name(programs: Programs) -> None:
    code, output, _ = programs.run("-m", "legato.compat", "-m", "json.tool", "--help")
    assert code == 0
    assert "usage: " in output
