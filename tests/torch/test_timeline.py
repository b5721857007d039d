"""The timeline of training: layers, updates and tasks of all ranks in one picture."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.errors import LegatoError
from legato.observe import Timeline, TimelineConfig
from legato.torch.scheduling.layers import LayerNotes
from legato.torch.scheduling.modules import Owners
from tests.observe.picture import Picture, check_nesting, phases, read
from tests.torch.crew import Crew


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


@contextmanager
def environment(**values: str) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


def from_environment(path: str, transport: str) -> None:
    with environment(LEGATO_TIMELINE=path):
        lg.init()
    model, optimizer = lg.schedule(*make(), transport=transport)
    train(model, optimizer, 4)
    lg.shutdown()
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def started_later(path: str, transport: str) -> None:
    lg.init()
    model, optimizer = lg.schedule(*make(), transport=transport)
    train(model, optimizer, 2)
    hooks = sum(len(module._forward_hooks) for module in model.modules())
    lg.start_timeline(path)
    train(model, optimizer, 3)
    lg.stop_timeline()
    lg.stop_timeline()
    assert sum(len(module._forward_hooks) for module in model.modules()) == hooks == 0
    train(model, optimizer, 1)


class Tied(nn.Module):
    """The same weights at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.relu_(self.body(self.tokens(tokens))))
        return result


def test_shared_weights_belong_to_their_first_layer(tmp_path: Path) -> None:
    model = Tied()
    timeline = Timeline(0, 1)
    timeline.start(TimelineConfig(path=tmp_path / "run.json"))
    parameters = list(model.parameters())
    notes = LayerNotes(timeline, "g", Owners(model, parameters).layers(), parameters, step=7)
    came: list[tuple[int, int]] = []
    for index, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: came.append((index, time.monotonic_ns())))
    for _ in range(2):
        came.clear()
        model(torch.tensor([1, 2])).sum().backward()
        notes.end_pass(came)
    notes.detach()
    timeline.stop()
    picture = read(tmp_path / "run.json")
    check_nesting(picture)
    names = {row: [name for name, *_ in boxes] for row, boxes in picture[0].items()}
    assert names == {
        "forward": ["tokens", "body", "head", "wait hand-over"] * 2,
        "backward": ["body", "tokens"] * 2,
    }


def check(picture: Picture, steps: list[int]) -> None:
    check_nesting(picture)
    assert sorted(picture) == [0, 1]
    for rows in picture.values():
        forward = [(name, details["step"]) for name, _, _, details in rows["forward"] if name[0].isdigit()]
        assert [(name, step) for name, step in forward if step == steps[1]] == [
            (name, steps[1]) for name in ("0", "2.0", "3")
        ]
        backward = [(name, details["step"]) for name, _, _, details in rows["backward"]]
        assert backward == [(name, step) for step in steps for name in ("3", "2.0", "0")]
        tensors = [row for row in rows if row.startswith("gradients.") and not row.endswith("/presence")]
        assert [row.split("/")[1] for row in tensors][-2:] == ["3.weight", "3.bias"]
        assert len(tensors) == 6
        for row in tensors:
            found = phases(rows[row])
            assert list(found) == steps
            assert "arrived" in found[steps[1]]
        assert any(name.startswith("update 0.") for name, *_ in rows["forward"])
        for step in steps[1:]:  # in the first, updates show whether they can come later
            end_ns = max(end for _, _, end, details in rows["backward"] if details["step"] == step)
            of_pass, of_step = (
                (begin, end)
                for name, begin, end, details in rows["forward"]
                if name == "wait hand-over" and details["step"] == step
            )
            assert end_ns == of_pass[0] <= of_pass[1] <= of_step[0] <= of_step[1]


@pytest.mark.parametrize("transport", ["native", "c10d"])
def test_the_environment_turns_it_on_and_leaving_writes_it(crew: Crew, transport: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    crew.run(from_environment, str(path), transport)
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
    check(read(path), [0, 1, 2, 3])


@pytest.mark.parametrize("transport", ["native", "c10d"])
def test_horovods_functions_start_and_stop_it_anywhere(crew: Crew, transport: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    crew.run(started_later, str(path), transport)
    check(read(path), [2, 3, 4])


def broken(path: str) -> None:
    with environment(BYTESCHEDULER_TIMELINE=path):
        lg.init()
    model, optimizer = lg.schedule(*make())
    train(model, optimizer, 2)
    raise LegatoError("broken")


def test_after_an_exception_every_rank_leaves_a_whole_file(crew: Crew, tmp_path: Path) -> None:
    assert all(isinstance(each, LegatoError) for each in crew.outcomes(broken, str(tmp_path / "run.json")))
    for rank in (0, 1):
        picture = read(tmp_path / f"run.rank{rank}.json")
        check_nesting(picture)
        assert list(picture) == [rank]
        assert any(row.startswith("part") for row in picture[rank])
