"""A schedule: updates that wait for nothing but their own gradient, in the step after.

    step k:    forward … backward ─ gradient of layer i ready ─► start        the step ends here
    step k+1:  [finish, update] of layer i ─► forward of layer i              the others go on meanwhile

What step k has started is in slots (native/tensorflow/slot.hpp), not in the graph, so the step returns while its
gradients travel. Step k+1 begins with one conditional update per variable. TensorFlow runs whatever is ready: the
forward of a layer waits for the updates of its own variables alone.
"""

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, Unpack

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope

from legato.core import Plan
from legato.errors import InputError
from legato.exchange import ExchangeOptions, check_options
from legato.tensorflow.api import Worker, current
from legato.tensorflow.buffers import Slots, spec_of
from legato.tensorflow.collectives import broadcast_variables, tensorflow_variable
from legato.tensorflow.gradients import UPDATE_SCOPE, first_use, spec_name
from legato.tensorflow.optimizer import fasten, unfasten

Model = TypeVar("Model", bound=keras.Model)
Optimizer = TypeVar("Optimizer", bound=keras.optimizers.Optimizer)

_READERS = ("call", "get_weights", "save", "save_weights", "export")
"""What a model does with its weights; each applies first what is due."""


def schedule(
    model: Model,
    optimizer: Optimizer,
    **options: Unpack[ExchangeOptions],
) -> tuple[Model, Optimizer]:
    """Overlap the exchange of gradients with backward and with the next forward: the one line.

    Weights and the optimizer's state become those of rank 0, here or, if the model is not built yet, when it is first
    called. The same objects come back; train them with `fit`, or in a `tf.function` of your own that calls the model.
    """
    check_options(options)
    worker = current()
    if worker.job.size == 1:
        return model, optimizer
    _check_pieces(optimizer)
    if hasattr(model, "_legato"):
        raise InputError("this model is already scheduled")
    worker.job.keep(Schedule(worker, model, optimizer, options))
    return model, optimizer


def current_plan(model: keras.Model) -> Plan:
    """What a scheduled model follows: buckets, order, parts, credit and barriers."""
    return _of(model).plan


def flush(model: keras.Model) -> None:
    """Apply updates that are still due, before weights are read past the model (a variable, or a layer of it)."""
    _of(model).flush()


def unschedule(model: keras.Model) -> None:
    """Apply what is still due, and leave the model and its optimizer as they were before `schedule`."""
    made = _of(model)
    made.remove()
    made.worker.job.forget(made)


def _of(model: keras.Model) -> "Schedule":
    made = getattr(model, "_legato", None)
    if not isinstance(made, Schedule):
        raise InputError("this model is not scheduled; call legato.tensorflow.schedule(model, optimizer) first")
    return made


class Schedule:
    """Fastened to one model and its optimizer."""

    def __init__(self, worker: Worker, model: Any, optimizer: Any, options: ExchangeOptions) -> None:
        self.worker = worker
        self._model = model
        self._optimizer = optimizer
        self._options = options
        self._variables: list[Any] = []
        self._slots: Slots | None = None
        self._has_order = False
        self._is_updating = False
        self._begun_in: weakref.ref[Any] | None = None
        """The graph that has its updates already."""
        with tf.init_scope():
            self._is_due = tf.Variable(False, trainable=False)
            """Whether a step has been taken whose updates are not applied yet."""
            self._learning_rate = tf.Variable(0.0, trainable=False, dtype=keras.config.floatx())
            """As it was when that step was taken."""
        fasten(optimizer, _Deferring, self)
        object.__setattr__(model, "_legato", self)
        for name in _READERS:
            object.__setattr__(model, name, self._after_updates(getattr(model, name)))
        worker.when_closed(self.take_off)
        if model.built:
            self._agreed()

    @tf.autograph.experimental.do_not_convert
    def begin(self) -> None:
        """Each variable's update, where one is due, before anything reads it: at once, or in the graph being traced."""
        with self.worker.typed_errors():
            slots = self._agreed()
            if not tf.executing_eagerly():
                self._begun_in = weakref.ref(_graph())
            with tf.name_scope(UPDATE_SCOPE):
                for index in range(len(slots)):
                    tf.cond(slots.started(index), functools.partial(self._update, index), lambda: False)
                iterations = tensorflow_variable(self._optimizer.iterations)
                iterations.assign_add(tf.cast(self._is_due, iterations.dtype))
                self._is_due.assign(False)

    @tf.autograph.experimental.do_not_convert
    def take_step(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """The optimizer's `apply`: start every gradient, and remember the hyper-parameters of this moment."""
        with self.worker.typed_errors():
            slots = self._agreed()
            if not tf.executing_eagerly() and (self._begun_in is None or self._begun_in() is not _graph()):
                raise InputError("call the scheduled model itself in the tf.function that applies its gradients")
            ordered = self._by_slot(gradients, variables)
            if not self._has_order:
                self._has_order = True
                slots.set_order(first_use(self._variables))
            for index, gradient in enumerate(ordered):
                slots.start(index, tf.convert_to_tensor(gradient))
            self._learning_rate.assign(tf.cast(self._optimizer.learning_rate, self._learning_rate.dtype))
            self._is_due.assign(True)

    def flush(self) -> None:
        if self._slots is not None:
            self.begin()

    def remove(self) -> None:
        """Apply the last step, and let go of the model and the optimizer."""
        try:
            self.flush()
        finally:
            self.take_off()

    def take_off(self) -> None:
        """Let go of them as they are; a model can be read and saved after the job has failed. Can be called twice."""
        if hasattr(self._model, "_legato"):
            unfasten(self._optimizer)
            for name in ("_legato", *_READERS):
                object.__delattr__(self._model, name)

    @property
    def plan(self) -> Plan:
        """What its newest step follows."""
        return self._agreed().plan

    @property
    def learning_rate(self) -> Any:
        """That of the step whose updates are being applied; None if none are."""
        return self._learning_rate if self._is_updating else None

    def _agreed(self) -> Slots:
        """Made once the model has its variables: everybody starts from rank 0's, and agrees on what will travel."""
        if self._slots is None:
            with tf.init_scope():
                self._variables = list(self._model.trainable_variables)
                if not self._variables:
                    raise InputError("the model has no variables yet; build it first (call it on one batch)")
                if not self._optimizer.built:
                    self._optimizer.build(self._variables)
                broadcast_variables([*self._model.variables, *self._optimizer.variables])
            specs = [
                spec_of(spec_name(place, each), tensorflow_variable(each)) for place, each in enumerate(self._variables)
            ]
            job = self.worker.job
            self._slots = self.worker.slots(self, lambda: Slots(job, job.name("gradients"), specs, self._options))
        return self._slots

    def _by_slot(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Every variable's gradient: a bucket of them travels when it is whole."""
        given = {
            id(tensorflow_variable(variable)): gradient
            for gradient, variable in zip(gradients, variables, strict=True)
            if gradient is not None
        }
        for variable in self._variables:
            if id(tensorflow_variable(variable)) not in given:
                raise InputError(
                    f"variable {variable.path!r} has no gradient in this step; freeze it (trainable = False) before "
                    "you schedule the model, or use legato.tensorflow.DistributedOptimizer"
                )
        if len(given) > len(self._variables):
            raise InputError("the model has got new variables since it was scheduled; build it first (call it once)")
        return [given[id(tensorflow_variable(variable))] for variable in self._variables]

    def _update(self, index: int) -> bool:
        assert self._slots is not None
        average, variable = self._slots.finish(index), self._variables[index]
        with self._updating():
            self._optimizer._backend_apply_gradients([average], [variable])
        if variable.constraint is not None:
            variable.assign(variable.constraint(variable))
        return True

    @contextmanager
    def _updating(self) -> Iterator[None]:
        self._is_updating = True
        try:
            yield
        finally:
            self._is_updating = False

    def _after_updates(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if not in_stateless_scope():  # in which Keras only looks at shapes
                self.begin()
            return function(*arguments, **options)

        return wrapped


class _Deferring:
    """In front of a scheduled optimizer's own class."""

    _legato: Schedule

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)  # type: ignore[attr-defined]
        self._legato.take_step(list(grads), variables)

    def _get_current_learning_rate(self) -> Any:
        deferred = self._legato.learning_rate
        return super()._get_current_learning_rate() if deferred is None else deferred  # type: ignore[misc]


def _graph() -> Any:
    return tf.compat.v1.get_default_graph()


def _check_pieces(optimizer: Any) -> None:
    """An update of one variable must not need the gradients of others."""
    for name in ("global_clipnorm", "use_ema", "gradient_accumulation_steps", "loss_scale_factor"):
        if getattr(optimizer, name, None):
            raise InputError(
                f"{name} needs all gradients of a step at once; use legato.tensorflow.DistributedOptimizer with it"
            )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise InputError("a LossScaleOptimizer needs all gradients of a step; use DistributedOptimizer with it")
