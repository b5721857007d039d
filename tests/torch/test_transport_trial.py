"""Which transport: two real ranks with a process group of their own, whose first steps decide."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

import legato.torch as lg
from legato.errors import InputError
from legato.job import Job
from legato.testing.log import said
from legato.torch.scheduling.hooks import Schedule
from legato.torch.sync.c10d import C10dSynchronizer
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.switching import Switching
from legato.torch.tuning import transport_trial
from legato.torch.tuning.live import LiveTuning
from legato.torch.tuning.transport_trial import LOOK_STEPS, TransportTrial
from legato.transports.native.group import NativeGroup
from legato.tuning.live.controller import WORTHWHILE
from tests.torch.crew import Crew

WIDTH = 128
NUM_LAYERS = 4
STEPS = 64
"""More than a trial can take."""
SYNCHRONIZERS = {"native": NativeSynchronizer, "c10d": C10dSynchronizer}


class Whole(nn.Module):
    """Layers whose gradients are whole numbers, whatever the weights: their sums are exact in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS))
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([layer(x) for layer in self.layers]).sum()


@contextmanager
def slowed(transport: str) -> Iterator[None]:
    """A transport that takes 40 ms more for every step, on the last rank: the other one waits for it."""
    kind: Any = SYNCHRONIZERS.get(transport)
    if kind is None:
        yield
        return
    submit = kind.submit

    def slow(self: Any, index: int, gradient: torch.Tensor | None) -> None:
        if index == 0 and lg.rank() == lg.size() - 1:
            time.sleep(40e-3)
        submit(self, index, gradient)

    kind.submit = slow
    try:
        yield
    finally:
        kind.submit = submit


def train(slow: str, worthwhile: float, options: dict[str, Any]) -> tuple[torch.Tensor, list[str], list[str], bool]:
    """Weights; what carried the gradients of each step; what was said; whether plans are tuned in the end."""
    dist.init_process_group("gloo")
    lg.init()
    model = Whole()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    carriers = []
    with slowed(slow), said("legato.torch") as lines, patch.object(transport_trial, "WORTHWHILE", worthwhile):
        lg.schedule(model, optimizer, **options)
        schedule = Schedule.of(model)
        first = schedule.synchronizer
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(10 * step + lg.rank())
            optimizer.zero_grad()
            model(torch.randint(-4, 5, (2, WIDTH), generator=generator).float()).backward()
            if isinstance(first, Switching):
                is_decided = schedule.synchronizer is not first
                kinds = {type(each) for each in ([schedule.synchronizer] if is_decided else first._carriers)}
                assert len(kinds) == 1, "all gradients of a step go the same way"
                carriers.append(next(name for name, kind in SYNCHRONIZERS.items() if kind in kinds))
            optimizer.step()
        assert not isinstance(schedule.synchronizer, Switching), "what is decided passes through nothing else"
        weights = torch.cat([value.reshape(-1) for value in model.state_dict().values()]).clone()
        tuning = schedule._parameters.tuning
        then = tuning._then if isinstance(tuning, TransportTrial) else tuning
        is_tuned = isinstance(then, LiveTuning) and then._meter is not None
        return weights, carriers, [line for line in lines if " over " in line], is_tuned


@pytest.mark.parametrize(
    ("slow", "worthwhile", "stays", "words"),
    [
        ("c10d", 0.0, "native", ": slower, so bytescheduler over native stays"),
        ("native", WORTHWHILE, "c10d", ": it stays on"),
    ],
)
def test_the_faster_transport_stays_and_no_result_changes(
    crew: Crew, slow: str, worthwhile: float, stays: str, words: str
) -> None:
    (weights, carriers, lines, is_tuned), (weights_too, carriers_too, silence, _) = crew.run(
        train, slow, worthwhile, {}
    )
    (alone, none, _, _), _ = crew.run(train, "", 0.0, {"transport": "native"})
    assert carriers == carriers_too
    block = transport_trial.CONFIG.block_steps
    trial = ["native"] * block + ["c10d"] * 2 * block + ["native"] * 2 * block + ["c10d"] * 2 * block
    assert carriers[: 1 + LOOK_STEPS + len(trial)] == ["native"] * (1 + LOOK_STEPS) + trial
    assert carriers[-8:] == [stays] * 8
    assert len(lines) == 1
    assert lines[0].endswith(words)
    assert not silence, "only rank 0 speaks"
    assert is_tuned == (stays == "native"), "plans are tuned where they can change"
    assert none == []
    assert torch.equal(weights, weights_too)
    assert torch.equal(weights, alone)


def train_from(usual: str, *arguments: Any) -> tuple[torch.Tensor, list[str], list[str], bool]:
    with patch("legato.torch.sync.routes.usual_transport", lambda on_cuda: usual):  # noqa: ARG005
        return train(*arguments)


@pytest.mark.parametrize(("slow", "stays"), [("c10d", "native"), ("native", "c10d")])
def test_a_process_group_that_stands_is_tried_as_well(crew: Crew, slow: str, stays: str) -> None:
    """As over NCCL."""
    (weights, carriers, lines, is_tuned), (weights_too, carriers_too, _, _) = crew.run(
        train_from, "c10d", slow, 0.0, {}
    )
    assert carriers == carriers_too
    assert carriers[0] == "c10d"
    assert set(carriers) == {"native", "c10d"}
    assert carriers[-8:] == [stays] * 8
    assert len(lines) == 1
    assert not is_tuned
    assert torch.equal(weights, weights_too)


def without_native() -> tuple[bool, list[str]]:
    """Whether a transport is tried that cannot be had, and what is said."""

    def refuse(job: Job) -> NativeGroup:
        raise InputError(f"rank {job.rank} has no key")

    dist.init_process_group("gloo")
    lg.init()
    model = nn.Linear(8, 8)
    with (
        said("legato.torch.sync") as lines,
        patch("legato.torch.sync.routes.usual_transport", lambda on_cuda: "c10d"),  # noqa: ARG005
        patch.object(Job, "group", property(refuse)),
    ):
        lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return Schedule.of(model)._parameters.tuning is not None, lines


def test_training_goes_on_over_the_process_group_where_there_is_no_other(crew: Crew) -> None:
    for rank, (is_tried, lines) in enumerate(crew.run(without_native)):
        assert not is_tried
        assert lines == [f"transport native is not tried: rank {rank} has no key"]


def test_where_nobody_waits_nothing_is_tried(crew: Crew) -> None:
    (_, carriers, lines, is_tuned), _ = crew.run(train, "", 2.0, {})
    assert set(carriers) == {"native"}
    assert len(lines) == 1
    assert lines[0].endswith("bytescheduler over native stays, no transport can gain more")
    assert is_tuned


def is_tried(with_group: bool, deterministic: bool, sparse: bool, options: dict[str, Any]) -> bool:
    if with_group:
        dist.init_process_group("gloo")
    lg.init()
    model = nn.Embedding(8, 8, sparse=True) if sparse else nn.Linear(8, 8)
    torch.use_deterministic_algorithms(deterministic)
    try:
        lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    finally:
        torch.use_deterministic_algorithms(False)
    (made,) = lg.api._made_for(model)
    return isinstance(made, Schedule) and isinstance(made._parameters.tuning, TransportTrial)


@pytest.mark.parametrize(
    ("with_group", "deterministic", "sparse", "options", "tried"),
    [
        (True, False, False, {}, True),
        (True, False, False, {"policy": "bytescheduler"}, True),
        (True, False, False, {"compression": "fp16"}, True),
        (False, False, False, {}, False),
        (True, True, False, {}, False),
        (True, False, True, {}, False),
        (True, False, False, {"transport": "native"}, False),
        (True, False, False, {"transport": "c10d"}, False),
        (True, False, False, {"tuner": "off"}, False),
        (True, False, False, {"policy": "fifo"}, False),
        (True, False, False, {"backups": 1}, False),
        (True, False, False, {"compression": "onebit", "min_compress_bytes": 0}, False),
    ],
)
def test_where_there_is_a_choice(
    crew: Crew, with_group: bool, deterministic: bool, sparse: bool, options: dict[str, Any], tried: bool
) -> None:
    assert crew.run(is_tried, with_group, deterministic, sparse, options) == [tried] * 2


def steps_until_removed() -> list[str]:
    """A schedule that is removed in the middle of a trial leaves no thread behind."""
    dist.init_process_group("gloo")
    lg.init()
    model = Whole()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with patch.object(transport_trial, "WORTHWHILE", 0.0):
        lg.schedule(model, optimizer)
        for _ in range(LOOK_STEPS + 5):
            optimizer.zero_grad()
            model(torch.ones(2, WIDTH)).backward()
            optimizer.step()
    lg.unschedule(model)
    return [thread.name for thread in threading.enumerate() if thread.name == "legato-runtime"]


def test_a_trial_can_be_left(crew: Crew) -> None:
    assert crew.run(steps_until_removed) == [[], []]
