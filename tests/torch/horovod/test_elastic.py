"""hvd.elastic: what is kept, restored and shared, and what is called again when. Real changes of membership are in
tests/cli/test_elastic_training.py."""

import copy
from typing import Any

import pytest
import torch

import legato.horovod.torch as hvd
from legato.errors import InputError, MismatchError
from legato.horovod.common.elastic import HostUpdateResult, run_fn
from legato.horovod.common.exceptions import HostsUpdatedInterrupt
from tests.torch.crew import Crew


def _state(seed: int, **plain: Any) -> hvd.elastic.TorchState:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1), model.named_parameters())
    return hvd.elastic.TorchState(
        model,
        optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1),
        sampler=hvd.elastic.ElasticSampler(range(20)),
        **plain,
    )


def _step(state: Any) -> None:
    state.optimizer.zero_grad()
    state.model(torch.full((1, 3), hvd.rank() + 1.0)).sum().backward()
    state.optimizer.step()
    state.scheduler.step()
    state.sampler.record_batch(0, 2)
    state.epoch += 1
    state.history.append(state.epoch)


def _picture(state: Any) -> Any:
    """All that it holds, as plain values."""
    parts = [state.model, state.optimizer, state.scheduler, state.sampler]
    return copy.deepcopy((str([part.state_dict() for part in parts]), state.epoch, state.history))


def _restored() -> None:
    hvd.init()
    state = _state(0, epoch=0, history=[])
    _step(state)
    state.commit()
    committed = _picture(state)
    for _ in range(2):  # what is kept is not what training goes on with
        _step(state)
        assert _picture(state) != committed
        state.restore()
        assert _picture(state) == committed
    assert len(state.sampler) == (20 - 2 * 2) // 2


def test_a_restored_state_is_the_one_that_was_committed(crew: Crew) -> None:
    crew.run(_restored)


def _synced() -> Any:
    hvd.init()
    state = _state(hvd.rank(), epoch=10 * hvd.rank(), history=[hvd.rank()])
    if hvd.rank() == 0:  # the others have no state of Adam's yet, as a rank that has just joined
        for parameter in state.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        with state.optimizer.skip_synchronize():
            state.optimizer.step()
        state.sampler.record_batch(0, 3)
        state.epoch = 4
    state.sync()
    picture = _picture(state)
    _step(state)
    state.restore()
    assert _picture(state) == picture
    return picture


def _new_model() -> list[Any]:
    hvd.init()
    state = _state(0, epoch=0, history=[])
    state.model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        state.model.bias.fill_(7.0)
    state.restore()
    return [state.model.in_features, float(state.model.bias) != 7.0]


def test_another_model_takes_the_place_of_the_one_before(crew: Crew) -> None:
    assert crew.run(_new_model, size=1) == [[1, True]]


def _run_again() -> list[Any]:
    hvd.init()
    told: list[Any] = []
    state = _state(hvd.rank(), epoch=0, history=[])
    state.register_reset_callbacks([lambda: told.append("callback")])

    def train(state: Any, limit: int) -> str:
        told.append(("train", state.epoch, float(state.model.bias[0]).hex()))
        while state.epoch < limit:
            _step(state)
            if len(told) == 1 and state.epoch == 2:
                state.commit()
            elif len(told) == 1 and state.epoch == 3:
                raise hvd.HorovodInternalError("as if a rank was lost")
            elif len(told) == 4 and state.epoch == 4:
                if hvd.rank() == 0:
                    state.on_hosts_updated(1.0, HostUpdateResult.added)
                state.check_host_updates()
        return "done"

    told.append(run_fn(train, lambda: told.append("reset"))(state, 6))
    assert train.__name__ == run_fn(train, lambda: None).__name__
    return [*told, state.epoch, state.history]


def test_a_function_runs_again_from_what_was_committed_or_from_where_it_was(crew: Crew) -> None:
    first, second = crew.run(_run_again)
    assert first == second
    kinds = [each[0:2] if isinstance(each, tuple) else each for each in first]
    assert kinds == [
        ("train", 0),
        "reset",
        "callback",
        ("train", 2),
        "reset",
        "callback",
        ("train", 4),
        "done",
        6,
        [1, 2, 3, 4, 5, 6],
    ]


def _updates() -> list[bool | None]:
    hvd.init()
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)
    told: list[bool | None] = []
    for update in (None, HostUpdateResult.removed, None, HostUpdateResult.added):
        if update is not None and hvd.rank() == 0:
            state.on_hosts_updated(float(len(told) + 1), update)
        try:
            state.commit()
            told.append(None)
        except HostsUpdatedInterrupt as interrupt:
            told.append(interrupt.skip_sync)
            state.on_reset()
    return told


def test_all_ranks_hear_of_updates_at_the_same_commit(crew: Crew) -> None:
    assert crew.run(_updates) == [[None, True, None, False]] * 2


def _mistaken() -> None:
    hvd.init()

    def train(state: Any) -> None:
        state.epoch += 1
        hvd.allreduce(torch.zeros(hvd.rank() + 1), name="x")

    run_fn(train, lambda: pytest.fail("it would go wrong again"))(_state(0, epoch=0, history=[]))


def test_what_would_go_wrong_again_is_not_tried_again(crew: Crew) -> None:
    assert [type(each) for each in crew.outcomes(_mistaken)] == [MismatchError] * 2


def _not_elastic() -> list[str]:
    hvd.init()

    @hvd.elastic.run
    def train(_: Any) -> None:
        raise hvd.HorovodInternalError("somebody is lost")

    with pytest.raises(InputError) as caught:
        train(_state(0, epoch=0, history=[]))
    return [str(caught.value), str(caught.value.__context__)]


def test_a_job_that_is_not_elastic_says_so_and_why_it_ended(crew: Crew) -> None:
    for said, why in crew.run(_not_elastic):
        assert "this job is not elastic" in said
        assert why == "somebody is lost"


def test_the_state_of_rank_0_is_everybodys(crew: Crew) -> None:
    first, second, third = crew.run(_synced, size=3)
    assert first == second == third
    assert first[1:] == (4, [0])


@pytest.mark.parametrize("method", ["save", "restore", "sync"])
def test_a_state_without_its_methods_says_which(method: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"State has no {method}\(\)"):
        getattr(hvd.elastic.State(lambda value: value, lambda: 0), method)()
