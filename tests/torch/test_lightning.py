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
from legato.errors import InputError
from tests.observe.picture import read
from tests.torch.crew import Crew

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning")

STEPS = 6
BATCH = 4


def batches(sampled: bool) -> "DataLoader[Any]":
    """The same for all; or this rank's share of them, where Lightning does not know that there are others."""
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(2 * BATCH * STEPS, 8, generator=generator))
    if not sampled:
        return DataLoader(data, batch_size=BATCH)
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=lg.size(), rank=lg.rank())
    return DataLoader(data, batch_size=BATCH, sampler=sampler)


def fit(folder: str, timeline: str | None, **options: Any) -> tuple[torch.Tensor, Any]:
    """The weights after a fit by Lightning, and its trainer; scheduled by hand if there is a timeline to write."""
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
            else:
                self.log("loss", loss, sync_dist=True)
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
            **options,
        )
        trainer.fit(model, batches(sampled=timeline is not None))
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()]), trainer


def shared(strategy: Any) -> None:
    """What Lightning asks of a strategy beside gradients."""
    mine = torch.tensor([1.0, 2.0]) * (strategy.global_rank + 1)
    assert strategy.reduce(mine, reduce_op="sum").tolist() == [3.0, 6.0]
    assert strategy.reduce(mine).tolist() == [1.5, 3.0]
    assert strategy.reduce("not a tensor") == "not a tensor"
    assert strategy.all_gather(mine).tolist() == [[1.0, 2.0], [2.0, 4.0]]
    assert strategy.broadcast(f"of rank {strategy.global_rank}", src=1) == "of rank 1"
    assert strategy.reduce_boolean_decision(strategy.global_rank == 0, all=False)
    assert not strategy.reduce_boolean_decision(strategy.global_rank == 0)
    strategy.barrier("here")
    for wrong in ({"reduce_op": "median"}, {"group": "some of them"}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} is '{next(iter(wrong.values()))}'"):
            strategy.reduce(mine, **wrong)


def compare(folder: str, timeline: str) -> dict[str, Any]:
    """Lightning scheduled by hand, by legato's strategy, and over its own DDP, two steps of accumulation included."""
    from legato.integrations.lightning import LegatoStrategy

    lg.init()
    shared(LegatoStrategy())
    by_hand, trainer = fit(folder, timeline, devices=1)
    lg.stop_timeline()
    num_steps = [trainer.global_step]
    ours, trainer = fit(folder, None, devices=1, strategy=LegatoStrategy())
    num_steps.append(trainer.global_step)
    place = (trainer.world_size, trainer.global_rank, trainer.is_global_zero)
    logged = [trainer.callback_metrics["loss"].item()]
    accumulated, trainer = fit(folder, None, devices=1, strategy="legato", accumulate_grad_batches=2)
    assert isinstance(trainer.strategy, LegatoStrategy)
    theirs, trainer = fit(folder, None, devices=2, strategy="ddp")
    num_steps.append(trainer.global_step)
    logged.append(trainer.callback_metrics["loss"].item())
    theirs_accumulated, _ = fit(folder, None, devices=2, strategy="ddp", accumulate_grad_batches=2)
    return {
        "equal": [bool((each == theirs).all()) for each in (by_hand, ours)],
        "equal, accumulated": bool((accumulated == theirs_accumulated).all()),
        "steps": num_steps,
        "place": place,
        "logged": logged[0] == logged[1],
    }


def test_weights_equal_lightnings_ddp_and_updates_wait_for_the_next_forward_pass(crew: Crew, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for rank, found in enumerate(crew.run(compare, str(tmp_path), str(path))):
        assert found == {
            "equal": [True, True],
            "equal, accumulated": True,
            "steps": [STEPS] * 3,
            "place": (2, rank, rank == 0),
            "logged": True,
        }
    for rows in read(path).values():
        passes = {details["step"]: (begin, end) for name, begin, end, details in rows["forward"] if "_step" in name}
        updates = [(details["step"], begin) for name, begin, _, details in rows["forward"] if "update" in name]
        inside = {step for step, begin in updates if step in passes and passes[step][0] <= begin <= passes[step][1]}
        # The first two steps show that the closure comes first and that the optimizer can be divided; nothing but the
        # end of training applies the last update.
        assert inside == set(range(3, STEPS))
        assert {step for step, _ in updates} - inside == {STEPS}
