"""The examples of other people's trainers: on two workers, the losses of their own DDP, to the last digit printed."""

import os
import warnings
from importlib.util import find_spec

import pytest
import torch

import legato.torch as lg
from legato.errors import PeerLostError
from tests.crew import example, losses_of
from tests.torch.crew import Crew

EXAMPLES = {
    "accelerate": ("accelerate_digits.py", "--epochs 3"),
    "lightning": ("lightning_digits.py", "--epochs 3"),
    "transformers": ("transformers_gpt.py", "--steps 30 --batch 4 --length 32 --width 32 --depth 2 --lr 0.01"),
}


def run(script: str, *words: str) -> str:
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice on workers
            return example(script, *words)
    finally:
        if script != "lightning_digits.py":
            from accelerate.state import AcceleratorState, GradientState

            AcceleratorState._reset_state(reset_partial_state=True)  # it is the process's, which stays
            GradientState._reset_state()


@pytest.mark.parametrize("package", EXAMPLES)
def test_example_trains_as_over_ddp(crew: Crew, package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")
    script, words = EXAMPLES[package]
    ours, _ = crew.run(run, script, *words.split())
    theirs, _ = crew.run(run, script, *words.split(), "--ddp")
    assert losses_of(ours)[-1] < losses_of(ours)[0]
    assert losses_of(ours) == losses_of(theirs)


def fail_in_ray() -> None:
    """What surrounds a training function on each of Ray's workers."""
    from legato.integrations.ray import LegatoConfig

    with LegatoConfig().train_func_context():
        lg.allreduce(torch.ones(2))
        if lg.rank() == 1:
            raise ZeroDivisionError
        lg.allreduce(torch.ones(2))


@pytest.mark.skipif(find_spec("ray") is None, reason="needs ray[train]")
def test_a_training_function_of_ray_that_fails_ends_the_others_with_its_rank(crew: Crew) -> None:
    first, second = crew.outcomes(fail_in_ray)
    assert isinstance(second, ZeroDivisionError)
    assert isinstance(first, PeerLostError)
    assert "rank 1" in str(first)
