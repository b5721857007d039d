"""The systems that are measured side by side."""

import pytest
from torch import nn

import legato.torch as lg
from bench.grid.systems import Place, Trainer
from bench.testbed.launch import Launch
from legato.core import Layer, Workload

LAYERS = [Layer(name=f"layer{n}", forward_s=0.0, backward_s=0.0, num_bytes=4 * n) for n in (3, 5)]


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, lg.clip_grad_norm_])
def test_clipped_steps_are_half_as_long_and_checked(clip: object) -> None:
    launch = Launch(num_workers=1, num_servers=0, conductor="127.0.0.1", port=1)
    trainer = Trainer(Place(rank=0, launch=launch), Workload(name="two", layers=tuple(LAYERS)))
    trainer.clip(clip)  # type: ignore[arg-type]
    trainer.turn(3)
    trainer.check()
    assert all((weight == pytest.approx(-2.0)) for layer in trainer.model.parameters() for weight in layer.tolist())
    trainer.clip(lambda parameters, max_norm: clip(parameters, 2 * max_norm))  # type: ignore[operator]
    trainer.turn(3)
    with pytest.raises(AssertionError, match="are wrong after training"):
        trainer.check()
