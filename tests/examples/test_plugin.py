"""The plugin for a toy framework: two workers train as one process does on the joined batch."""

from tests.examples.test_examples import losses, run, torchrun

SCRIPT = "examples/numpy_plugin.py"


def test_two_workers_train_as_one_process_on_the_joined_batch() -> None:
    """Both workers' images of a step are those of one process, and so is the mean of their losses."""
    alone = run(SCRIPT, "--steps", "50", "--batch", "32")
    together = torchrun(SCRIPT, "--steps", "50", "--batch", "16")
    assert len(losses(alone)) == 6
    assert losses(alone)[-1] < losses(alone)[0] / 2
    assert all(abs(one - two) < 2e-4 for one, two in zip(losses(alone), losses(together), strict=True))
    assert "legato, 2 workers: " in together
