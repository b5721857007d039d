"""Modules: which of them use which parameters, and in what order a forward pass comes to them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from legato.errors import InputError
from legato.torch.scheduling.attachments import Hook, bare
from legato.torch.scheduling.gradients import describes
from legato.torch.sync.synchronizer import is_shard

_REMEDY = "call legato.torch.unschedule(model) and schedule(model, optimizer) again, on every rank"


def sparse_weights(model: nn.Module) -> set[Tensor]:
    """The weights whose gradients are sparse."""
    embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    return {module.weight for module in embeddings if module.sparse}


def fsdp_state(module: nn.Module) -> Any:
    """What FSDP keeps of a module that `fully_shard` was given; None of any other."""
    find = getattr(module, "_get_fsdp_state", None)
    return None if find is None else find()


def parameters_of(state: Any) -> Iterator[nn.Parameter]:
    """The shards that FSDP gathers before such a module runs, in one go."""
    for group in () if state is None else _groups(state):
        for each in group.fsdp_params:
            yield each.sharded_param


def _groups(state: Any) -> list[Any]:
    """What FSDP gathers before a module runs; before torch 2.13 that is one group, or None."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def stepped(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[int, str, nn.Parameter]]:
    """What the optimizer holds: the index of its group, its name in the model, and the parameter; each once."""
    names = {parameter: name for name, parameter in bare(model).named_parameters(remove_duplicate=True)}
    seen: set[nn.Parameter] = set()
    for index, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter not in seen:
                seen.add(parameter)
                yield index, names.get(parameter, f"optimizer.{index}.{place}"), parameter


def trained(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[int, str, nn.Parameter]]:
    """What of it is not frozen, and travels."""
    return (each for each in stepped(model, optimizer) if each[2].requires_grad)


class Frozen:
    """Parameters that did not train when gradients began to be averaged: whoever unfreezes one hears of it."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], remedy: str) -> None:
        self._frozen = [(name, parameter) for name, parameter in named if not parameter.requires_grad]
        self._remedy = remedy

    def check(self) -> None:
        """An InputError that names what trains by now."""
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise InputError(f"parameter {name!r} was frozen, so nobody averages its gradients; {self._remedy}")


class Enrolment:
    """The parameters that an optimizer held when it was scheduled."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        enrolled = [(name, parameter) for _, name, parameter in stepped(model, optimizer)]
        self._parameters = {parameter for _, parameter in enrolled}
        self._count = self._num_held()
        self._frozen = Frozen(enrolled, _REMEDY)

    def check(self) -> None:
        """An InputError that names what has been added or unfrozen since."""
        if self._num_held() != self._count:
            for _, name, parameter in stepped(self._model, self._optimizer):
                if parameter not in self._parameters:
                    raise InputError(
                        f"parameter {name!r} was added to the optimizer after schedule(), so nobody averages its "
                        f"gradients; {_REMEDY}"
                    )
        self._frozen.check()

    def _num_held(self) -> int:
        return sum(len(group["params"]) for group in self._optimizer.param_groups)


class Owners:
    """Calls back before a module runs, with the parameters that it is about to use.

    A module is taken to use the parameters it holds itself. Some use others' as well: `nn.MultiheadAttention` those
    of its `out_proj`, which it never calls; a tied head those of an embedding. The first forward pass is watched
    (`_Watch`), and whoever is seen to use a parameter answers for it from then on. A compiled module answers for
    everything below it, because there are no calls inside a compiled graph. A module that `fully_shard` was given
    answers for what FSDP gathers before it runs: nobody else uses shards.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        self._index = {parameter: index for index, parameter in enumerate(parameters)}
        # Ordered sets: tensors compare by value, so they are only ever keys (which compare by identity).
        self._users: dict[nn.Module, dict[nn.Parameter, None]] = {}
        self._handles: dict[nn.Module, list[RemovableHandle]] = {}
        self._covered: list[nn.Module] = []
        """Modules that users may have FSDP gather before they run."""
        self._first_use: dict[nn.Parameter, int] = {}
        self._running: list[nn.Module] = []
        self._watch: _Watch | None = _Watch(self._used)
        self._watching = False
        self._names = {module: name or type(module).__name__ for name, module in model.named_modules()}
        self._visit(model, None)
        held = {parameter for used in self._users.values() for parameter in used}
        for parameter in parameters:
            if parameter not in held:
                self._users[model][parameter] = None

    def attach(self, before_forward: Callable[[Iterable[nn.Parameter]], None]) -> None:
        """Begin to call back, and to watch."""
        self._before_forward = before_forward
        for module in self._users:
            self._handles[module] = [
                module.register_forward_pre_hook(Hook(self._enter), prepend=True),
                module.register_forward_hook(Hook(self._leave), always_call=True),
            ]
            if fsdp_state(module) is not None:
                vars(module)["unshard"] = partial(self._unshard, module)
                self._covered.append(module)

    def detach(self) -> None:
        for module in self._covered:
            del vars(module)["unshard"]
        self._covered.clear()
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()

    def layers(self) -> list[tuple[str, nn.Module, list[nn.Parameter]]]:
        """The modules that use parameters, by name, in the order of registration."""
        return [(self._names[module], module, list(used)) for module, used in self._users.items() if used]

    def order(self) -> list[int]:
        """The parameters in the order of their first use, as the passes so far have shown it; then stop watching."""
        self._watch = None
        for module, (_, leave) in self._handles.items():
            leave.remove()
            self._handles[module].pop()
        for module in [module for module, used in self._users.items() if not used]:
            self._handles.pop(module)[0].remove()
            del self._users[module]
        last = len(self._first_use)
        return sorted(self._index.values(), key=self._position(last).__getitem__)

    def _position(self, last: int) -> dict[int, tuple[int, int]]:
        return {index: (self._first_use.get(parameter, last), index) for parameter, index in self._index.items()}

    def _visit(self, module: nn.Module, compiled: nn.Module | None) -> None:
        """Note who holds what, from `module` down; `compiled` answers for all of it, if given."""
        state = fsdp_state(module)
        used = self._users.setdefault(module if state is not None else compiled or module, {})
        for parameter in (*module.parameters(recurse=False), *parameters_of(state)):
            if parameter in self._index and (state is not None or not is_shard(parameter)):
                used[parameter] = None
        if compiled is None and _is_compiled(module):
            compiled = module
        for child in module.children():
            if child not in self._users:
                self._visit(child, compiled)

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        del arguments
        used = self._users.get(module)
        if used:
            self._before_forward([*used, *self._prefetched(module)])
            _gather_behind(module)
        if self._watch is not None:
            self._running.append(module)
            if _is_compiled(module) or fsdp_state(module) is not None:
                for parameter in used or ():
                    self._used(parameter)
            self._set_watching(not any(map(_is_compiled, self._running)))

    def _unshard(self, module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        """In place of FSDP's own: what it gathers is up to date."""
        if used := self._users.get(module):
            self._before_forward(used)
            _gather_behind(module)
        return type(module).unshard(module, *arguments, **keywords)  # type: ignore[attr-defined]

    def _prefetched(self, module: nn.Module) -> Iterator[nn.Parameter]:
        """What FSDP gathers before a module runs because others need it soon (`set_modules_to_forward_prefetch`)."""
        state = fsdp_state(module)
        for later in () if state is None else state._states_to_forward_prefetch:
            yield from (parameter for parameter in parameters_of(later) if parameter in self._index)

    def _leave(self, module: nn.Module, arguments: Any, result: Any) -> None:
        del module, arguments, result
        if self._running:
            self._running.pop()
            self._set_watching(bool(self._running) and not any(map(_is_compiled, self._running)))

    def _set_watching(self, watching: bool) -> None:
        if self._watch is not None and watching != self._watching:
            self._watching = watching
            if watching:
                self._watch.__enter__()  # type: ignore[no-untyped-call]
            else:
                self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _used(self, parameter: nn.Parameter) -> None:
        if parameter in self._index:
            self._first_use.setdefault(parameter, len(self._first_use))
            self._users[self._running[-1]][parameter] = None


class _Watch(TorchFunctionMode):
    """Sees every torch function that is called, and tells which parameters it is given."""

    def __init__(self, used: Callable[[nn.Parameter], None]) -> None:
        super().__init__()
        self._used = used

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if not describes(func):
            for each in (*args, *(kwargs or {}).values()):
                if isinstance(each, nn.Parameter):
                    self._used(each)
                elif isinstance(each, list | tuple):
                    for inner in each:
                        if isinstance(inner, nn.Parameter):
                            self._used(inner)
        return func(*args, **(kwargs or {}))


def _gather_behind(module: nn.Module) -> None:
    """Have FSDP gather, for this module or others, behind what the current stream has been given: updates among it.

    On an accelerator it gathers on streams of its own, which wait for a script's stream before the first module only.
    """
    state = fsdp_state(module)
    if state is None or state._device.type != "cuda":
        return
    updated = torch.cuda.current_stream(state._device).record_event()
    # All groups of a model gather on the same streams.
    for group in (group for each in (state, *state._states_to_forward_prefetch) for group in _groups(each)):
        group._wait_all_gather_streams_on_event(updated)


def _is_compiled(module: nn.Module) -> bool:
    """Whether calling the module runs a compiled graph: `torch.compile(module)` or `module.compile()`."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
