"""Shards on an accelerator, on which FSDP reduces and gathers on streams of its own: 2 hosts of 2 ranks.

Gradients are small whole numbers, whatever the weights are, so weights equal DDP's to the last bit; losses show which
weights a forward pass has used.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import legato.torch as lg
from tests.torch.crew import Crew
from tests.torch.streams import NATIVE_SITES, ExactLayer, delayed

pytestmark = pytest.mark.cuda

STEPS = 8
LIMIT = 100.0


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Processes of this file's own: torch keeps meshes, with the sockets of their groups, for as long as one runs."""
    crew = Crew(4)
    yield crew
    crew.close()


class _Link(ExactLayer):
    """Passes a sum on, so that FSDP sees when backward is through with it."""

    def forward(self, carried: torch.Tensor, seed: int) -> torch.Tensor:  # type: ignore[override]
        return carried + super().forward(seed)


class _Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Link(*sizes) for sizes in ((1000, 2000), (64, 64), (700, 700), (2000, 1500)))

    def forward(self, seed: int) -> torch.Tensor:
        carried = torch.zeros((), device="cuda", requires_grad=True)
        for place, layer in enumerate(self.layers):
            carried = layer(carried, seed + place)
        return carried


def _train(way: str, *, by_legato: bool) -> tuple[torch.Tensor, list[float]]:
    """The weights after some steps, and each one's loss."""
    torch.manual_seed(7)
    model = _Chain().cuda()
    called: nn.Module = model
    if by_legato:
        hosts = init_device_mesh("cuda", (2, 2), mesh_dim_names=("host", "rank"))
        for module in (*model.layers, model):
            shard = fully_shard(module, mesh=hosts["rank"], reshard_after_forward=way != "whole")
            shard.set_force_sum_reduction_for_comms(True)  # Gloo has no averages
        if way == "prefetched":
            for one, after in zip(model.layers, model.layers[1:], strict=False):
                one.set_modules_to_forward_prefetch([after])  # type: ignore[operator]
    else:
        called = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    clip = nn.utils.clip_grad_norm_
    if by_legato:
        lg.schedule(model, optimizer, tuner="off", compression="fp16" if way == "fp16" else None)
        clip = lg.clip_grad_norm_
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = called(1000 * step + 100 * dist.get_rank())
        loss.backward()
        if way == "clipped":
            clip(model.parameters(), LIMIT)
        optimizer.step()
        losses.append(loss.detach())
    if by_legato:
        for module in (*model.layers, model):
            module.unshard()
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    return weights.cpu(), torch.stack(losses).tolist()


def _beside_ddp(way: str, site: str | None) -> Any:
    torch.cuda.init()  # before the mesh would choose a device by rank: all ranks have the same one
    dist.init_process_group("gloo")
    lg.init()
    expected = _train(way, by_legato=False)
    with delayed(None if site is None else [site], seed=dist.get_rank(), chance=0.5):
        return expected, _train(way, by_legato=True)


@pytest.mark.parametrize(
    ("way", "site"),
    [
        *(("resharded", site) for site in (*NATIVE_SITES, None)),
        ("whole", "copy back"),
        ("prefetched", "copy back"),
        ("fp16", "copy back"),
        ("clipped", "copy back"),
    ],
)
def test_streams_are_late_and_no_weight_changes(crew: Crew, way: str, site: str | None) -> None:
    for (expected, expected_losses), (weights, losses) in crew.run(_beside_ddp, way, site, size=4):
        assert losses == pytest.approx(expected_losses, rel=1e-4)
        if way == "clipped":
            torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(weights, expected)
