"""Lightning: its trainer passes a closure to step(), and `schedule` in `configure_optimizers` overlaps all the same."""

import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import legato.torch as lg
from tests.observe.picture import read
from tests.torch.crew import Crew

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning")

STEPS = 6
BATCH = 4


def batches() -> "DataLoader[Any]":
    """This rank's half of the same batches as DDP's, as a script under legato asks for it."""
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(2 * BATCH * STEPS, 8, generator=generator))
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=lg.size(), rank=lg.rank(), shuffle=False)
    return DataLoader(data, batch_size=BATCH, sampler=sampler)


def fit(folder: str, timeline: str | None, **options: Any) -> tuple[torch.Tensor, int]:
    """The weights after a fit by Lightning, over legato if there is a timeline to write, and the steps it counted."""
    import lightning.pytorch as lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            begin_ns = time.monotonic_ns()
            loss = self.layers(batch[0]).square().mean()
            if timeline is not None:
                lg.init().timeline.stretch("forward", "training_step", begin_ns, index)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            if timeline is not None:
                lg.schedule(self, optimizer)
                lg.start_timeline(timeline)
            return optimizer

    torch.manual_seed(3)
    model = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            **options,
        )
        trainer.fit(model, batches())
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()]), trainer.global_step


def both(folder: str, timeline: str) -> tuple[float, list[int]]:
    """How far legato's weights are from those of Lightning's own DDP, and the steps of each."""
    lg.init()
    ours, our_steps = fit(folder, timeline, devices=1)
    lg.stop_timeline()
    theirs, their_steps = fit(folder, None, devices=2, strategy="ddp")
    return (ours - theirs).abs().max().item(), [our_steps, their_steps]


def test_weights_equal_lightnings_ddp_and_updates_wait_for_the_next_forward_pass(crew: Crew, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert crew.run(both, str(tmp_path), str(path)) == [(0.0, [STEPS, STEPS])] * 2
    for rows in read(path).values():
        passes = {details["step"]: (begin, end) for name, begin, end, details in rows["forward"] if "_step" in name}
        updates = [(details["step"], begin) for name, begin, _, details in rows["forward"] if "update" in name]
        inside = {step for step, begin in updates if step in passes and passes[step][0] <= begin <= passes[step][1]}
        # The first two steps show that the closure comes first and that the optimizer can be divided; nothing but the
        # end of training applies the last update.
        assert inside == set(range(3, STEPS))
        assert {step for step, _ in updates} - inside == {STEPS}
