"""The zoo's parameter counts are those of the published models."""

import pytest

from legato.errors import InputError
from legato.sim.zoo import ZOO, workload

MILLIONS = {
    "alexnet": 61.1,
    "vgg16": 138.36,
    "resnet50": 25.56,
    "densenet121": 7.98,
    "transformer-big": 214.2,
    "bert-base": 109.5,
    "bert-large": 335.1,
    "gpt2": 124.44,
}


@pytest.mark.parametrize("model", ZOO)
def test_parameters(model: str) -> None:
    assert workload(model).num_bytes / 4e6 == pytest.approx(MILLIONS[model], abs=0.06)


def test_times_follow_batch_and_speed() -> None:
    once = workload("resnet50", batch=32, tflops=9)
    assert 32 / once.compute_s == pytest.approx(360, rel=0.05), "images per second of a V100"
    assert workload("resnet50", batch=64, tflops=9).compute_s == pytest.approx(2 * once.compute_s)
    assert workload("resnet50", batch=32, tflops=18).compute_s == pytest.approx(once.compute_s / 2)


def test_wrong_values() -> None:
    with pytest.raises(InputError, match="model 'vgg17' is unknown; accepted: alexnet"):
        workload("vgg17")
    with pytest.raises(InputError, match="batch=0"):
        workload("vgg16", batch=0)
