"""Policies in training: what leaves a rank, and in which order, is what the plan says, part by part."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.cli import main
from legato.core import Finished, Part, Plan, Policy, Ready, Scheduler, Sent, Stage, Start, Task, Tensor
from legato.core.plan import ONE_STAGE
from legato.core.policies import POLICIES
from legato.core.policy import Bucket, Order
from legato.errors import InputError, PlanError
from legato.torch.scheduling.hooks import Schedule
from legato.torch.tuning.profile import profile
from tests.core.plans import SmallestFirst
from tests.torch.crew import Crew

SIZES = [(300, 50), (50, 200), (200, 8), (8, 400), (400, 30), (30, 60), (60, 5)]
STEPS = 4

Event = tuple[int, str, int, int, int, int]


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(*size) for size in SIZES))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(4, SIZES[0][0], generator=torch.Generator().manual_seed(10 * step + lg.rank()))
        model(x).square().mean().backward()
        optimizer.step()


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def _by_ddp() -> torch.Tensor:
    lg.init()
    torch.distributed.init_process_group("gloo")
    model, optimizer = _model()
    _train(nn.parallel.DistributedDataParallel(model), optimizer)
    return _weights(model)


def _run(policy: str | Policy, transport: str) -> tuple[torch.Tensor, Plan, list[Event], list[Tensor]]:
    """The weights, the plan of the last steps, and what the engine did in them."""
    job = lg.init()
    if transport == "c10d":
        torch.distributed.init_process_group("gloo")
    model, optimizer = lg.schedule(*_model(), policy=policy, transport=transport, credit_bytes=40_000)
    events: list[Event] = []
    tensors: list[Tensor] = []
    if transport == "native":
        player, engine = job.group.session.player, job.group.session.engine
        engine.set_trace(2, STEPS, 100_000)
        _train(model, optimizer)
        lg.flush(model)
        for event in engine.take_events():
            definition = player.definition(event[2])
            assert definition is not None
            if (place := definition.tensor.place) is not None:
                events.append((*event[:2], place, *event[3:]))
        tensors = [
            Tensor(name=str(place), num_bytes=parameter.numel() * 4, priority=0, item_bytes=4)
            for place, parameter in enumerate(model.parameters())
        ]
    else:
        _train(model, optimizer)
        lg.flush(model)
    return _weights(model), lg.current_plan(model), events, tensors


def _replay(plan: Plan, tensors: list[Tensor], events: list[Event]) -> tuple[list[Part], list[Part]]:
    """What the engine has started, and what the core's scheduler starts when it hears of the same events.

    Of the first stage: the second begins at the servers.
    """
    pushes = replace(plan, stages=ONE_STAGE, ranks=plan.ranks[:1], stage_barrier=False)
    scheduler = Scheduler(tensors, pushes)
    begins = {}
    for bucket, members in enumerate(plan.buckets):
        begin = 0
        for tensor in members:
            begins[tensor] = bucket, begin
            begin += tensors[tensor].num_bytes
    started: list[Part] = []
    expected: list[Part] = []
    ready: set[Task] = set()
    for _, what, tensor, step, offset, length in events:
        bucket, begin = begins[tensor]
        part = Part(step, bucket, Stage.SYNC, begin + offset, length)
        event: Ready | Sent | Finished
        match what:
            case "ready" if Task(step, tensor) not in ready:
                ready.add(Task(step, tensor))
                event = Ready(Task(step, tensor))
            case "sent":
                event = Sent(part)
            case "finish":
                event = Finished(part)
            case "start":
                started.append(part)
                continue
            case _:
                continue
        expected += [command.part for command in scheduler.handle(0.0, event) if isinstance(command, Start)]
    return started, expected


ALL: list[str | Policy] = [*POLICIES, SmallestFirst()]


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy if isinstance(policy, str) else policy.name)
def test_every_policy_trains_over_native_in_the_order_of_its_plan(crew: Crew, policy: str | Policy) -> None:
    expected = crew.run(_by_ddp)[0]
    for weights, plan, events, tensors in crew.run(_run, policy, "native"):
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
        started, predicted = _replay(plan, tensors, events)
        assert started == predicted
        assert len(started) == (STEPS - 2) * sum(map(len, plan.parts(tensors)))
        name = policy if isinstance(policy, str) else policy.name
        assert plan.policy.startswith(name)


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy if isinstance(policy, str) else policy.name)
def test_every_policy_trains_over_c10d(crew: Crew, policy: str | Policy) -> None:
    expected = crew.run(_by_ddp)[0]
    for weights, plan, _, _ in crew.run(_run, policy, "c10d"):
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
        assert plan.sequence is not None


def _by_rank() -> list[int]:
    """The bytes of the tensors, those that go first first."""
    _, plan, _, tensors = _run(SmallestFirst(), "native")
    order = sorted(range(len(tensors)), key=lambda place: plan.ranks[0][plan.bucket_of[place]])
    return [tensors[place].num_bytes for place in order]


def test_a_policy_of_ones_own_ranks_by_what_it_likes(crew: Crew) -> None:
    for order in crew.run(_by_rank):
        assert order == sorted(order)


def _dues(policy: str, transport: str) -> tuple[bool, int]:
    """Whether the plan has a step barrier, and how many updates are due once the first layer has run."""
    lg.init()
    if transport == "c10d":
        torch.distributed.init_process_group("gloo")
    model, optimizer = lg.schedule(*_model(), policy=policy, transport=transport)
    _train(model, optimizer, 3)
    schedule = Schedule.of(model)
    if not lg.current_plan(model).step_barrier:
        # Nothing but the plan would have it wait: let nothing look as if it had come by itself.
        schedule._steps._arrived = lambda wanted: []  # type: ignore[method-assign]  # noqa: ARG005
    next(iter(model.children()))(torch.ones(1, SIZES[0][0]))
    due = sum(each.due is not None for each in schedule._parameters.all)
    lg.flush(model)
    return lg.current_plan(model).step_barrier, due


@pytest.mark.parametrize("transport", ["native", "c10d"])
@pytest.mark.parametrize("policy", ["wfbp", "mgwfbp", "bytescheduler", "rsag"])
def test_with_a_step_barrier_the_first_layer_waits_for_all(crew: Crew, policy: str, transport: str) -> None:
    has_barrier = policy in ("wfbp", "mgwfbp")
    num_later = 2 * len(SIZES) - 2
    assert crew.run(_dues, policy, transport) == [(has_barrier, 0 if has_barrier else num_later)] * 2


def _follow(path: str, transport: str) -> tuple[torch.Tensor, Plan]:
    lg.init()
    if transport == "c10d":
        torch.distributed.init_process_group("gloo")
    model, optimizer = lg.schedule(*_model(), plan=path, transport=transport)
    _train(model, optimizer)
    lg.flush(model)
    return _weights(model), lg.current_plan(model)


@pytest.mark.parametrize("transport", ["native", "c10d"])
def test_a_plan_from_a_file_is_what_runs(crew: Crew, tmp_path: Path, transport: str) -> None:
    num_tensors = 2 * len(SIZES)
    plan = Plan(
        policy="by hand",
        stages=(Stage.REDUCE_SCATTER, Stage.ALL_GATHER),
        buckets=tuple((place, place + 1) for place in reversed(range(0, num_tensors, 2))),
        ranks=(tuple(range(len(SIZES))), tuple(reversed(range(len(SIZES))))),
        partition_bytes=tuple(4000 + 400 * place for place in range(len(SIZES))),
        flat=False,
        credit_bytes=20_000,
        stage_barrier=True,
    )
    (tmp_path / "plan.json").write_text(plan.to_json())
    expected = crew.run(_by_ddp)[0]
    for weights, followed in crew.run(_follow, str(tmp_path / "plan.json"), transport):
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
        if transport == "native":
            assert followed == plan
        else:
            assert followed.buckets[:-1] == plan.buckets
            assert followed.partition_bytes[:-1] == plan.partition_bytes


@pytest.mark.parametrize("transport", ["native", "c10d"])
def test_what_tuning_a_profile_has_written_is_what_runs(crew: Crew, tmp_path: Path, transport: str) -> None:
    """A profile has a tensor for each layer, a schedule one for each parameter."""
    model, _ = _model()
    (tmp_path / "profile.json").write_text(profile("model", model, torch.ones(1, SIZES[0][0])).to_json())
    command = ["tune", str(tmp_path / "profile.json"), "--transport", transport, "--out", str(tmp_path / "plan.json")]
    assert main(command) == 0
    written = Plan.from_json((tmp_path / "plan.json").read_text())
    layers = [tuple(place for layer in bucket for place in (2 * layer, 2 * layer + 1)) for bucket in written.buckets]
    expected = crew.run(_by_ddp)[0]
    for weights, followed in crew.run(_follow, str(tmp_path / "plan.json"), transport):
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
        assert list(followed.buckets[: len(layers)]) == layers


def _refuse(options: dict[str, Any]) -> None:
    lg.init()
    lg.schedule(*_model(), transport="native", **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"policy": "p4"}, "policy 'p4' is unknown; accepted: auto, fifo"),
        ({"plan": "nowhere.json"}, "plan nowhere.json: .*No such file"),
        ({"plan": "plan.json", "policy": "p3"}, "give it alone"),
    ],
)
def test_what_cannot_be_followed(crew: Crew, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        crew.run(_refuse, options)


class _Failing(Policy):
    """A policy of a user's own with a mistake in it."""

    name = "failing"

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        raise ZeroDivisionError("bytes by nothing")


def _without_a_plan(transport: str, options: dict[str, Any]) -> str:
    lg.init()
    if transport == "c10d":
        torch.distributed.init_process_group("gloo")
    with pytest.raises((ZeroDivisionError, PlanError)) as raised:
        lg.schedule(*_model(), transport=transport, **options)
    return f"{raised.type.__name__}: {raised.value}"


@pytest.mark.parametrize("transport", ["native", "c10d"])
def test_where_rank_0_cannot_write_a_plan_all_ranks_hear_why(crew: Crew, transport: str) -> None:
    assert crew.run(_without_a_plan, transport, {"policy": _Failing()}) == [
        "ZeroDivisionError: bytes by nothing",
        "PlanError: rank 0 cannot write a plan: ZeroDivisionError: bytes by nothing",
    ]
    other = Plan(buckets=((0,),), ranks=((0,),), partition_bytes=(None,))
    for said in crew.run(_without_a_plan, transport, {"plan": other}):
        assert "it is for 1 tensors, but there are 14" in said


def _told(variables: dict[str, str], options: dict[str, Any]) -> tuple[str, int]:
    os.environ.update(variables)
    lg.init()
    for name in variables:
        del os.environ[name]
    model, _ = lg.schedule(*_model(), transport="native", **options)
    plan = lg.current_plan(model)
    return plan.policy.split("(")[0], len(plan.buckets)


@pytest.mark.parametrize(
    ("variables", "options", "policy", "fewer"),
    [
        ({}, {}, "auto", lambda count: count < 2 * len(SIZES)),
        ({"LEGATO_POLICY": "p3"}, {}, "p3", lambda count: count == 2 * len(SIZES)),
        ({"LEGATO_POLICY": "p3"}, {"policy": "rsag"}, "rsag", lambda count: count == 1),
        ({"LEGATO_FUSION_BYTES": "1MB"}, {"policy": "p3"}, "p3", lambda count: count == 1),
        ({"HOROVOD_FUSION_THRESHOLD": "1000000"}, {}, "auto", lambda count: count == 1),
    ],
)
def test_variables_say_what_the_code_does_not(
    crew: Crew, variables: dict[str, str], options: dict[str, Any], policy: str, fewer: Callable[[int], bool]
) -> None:
    for name, count in crew.run(_told, variables, options):
        assert name == policy
        assert fewer(count), count
