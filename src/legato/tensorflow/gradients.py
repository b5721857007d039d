"""Gradients of a list of variables: each starts when it is ready, in eager mode and in a graph."""

from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from legato.exchange import ExchangeOptions, check_options
from legato.tensorflow.api import Worker, current
from legato.tensorflow.buffers import Slots, spec_of
from legato.tensorflow.collectives import ReduceOp, reduced, tensorflow_variable

UPDATE_SCOPE = "legato_update"
"""In which a schedule's updates stand in a graph: they read variables, but are not the forward pass."""


class Gradients:
    """Averages the gradients of variables over the workers.

    All of them are started before the first is waited for: in a graph each runs when its gradient is ready, while the
    rest of the backward pass goes on.
    """

    def __init__(self, op: ReduceOp, options: ExchangeOptions) -> None:
        check_options(options)
        self._op = op
        self._options = options

    def reduce(self, gradients: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """The averages (or sums), in the same places; None where there is no gradient."""
        worker = current()
        if worker.job.size == 1:
            return list(gradients)
        results = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
        places = [place for place, each in enumerate(results) if each is not None and each.shape.num_elements() != 0]
        if not places:
            return results
        with worker.typed_errors():
            slots = self._slots(worker, [results[place] for place in places], [sources[place] for place in places])
            for index, place in enumerate(places):
                slots.start(index, results[place])
            for index, place in enumerate(places):
                results[place] = reduced(slots.finish(index), self._op, worker.job.size)
        return results

    def _slots(self, worker: Worker, gradients: Sequence[Any], sources: Sequence[Any]) -> Slots:
        def make() -> Slots:
            specs = [spec_of(spec_name(place, sources[place]), each) for place, each in enumerate(gradients)]
            slots = Slots(worker.job, worker.job.name("gradients"), specs, self._options)
            slots.set_order(first_use(sources))
            return slots

        return worker.slots(("gradients", repr(self._options), *map(_identity, sources)), make)


def spec_name(place: int, source: Any) -> str:
    """What ranks call a variable: by its place, because Keras numbers the names of layers anew in each process."""
    name = source.name if hasattr(tensorflow_variable(source), "handle") else "tensor"
    return f"{place}.{name.split('/')[-1].split(':')[0]}"


def first_use(sources: Sequence[Any]) -> list[int]:
    """Places by the variables' first use in the graph that is being traced; as they are given, in eager mode."""
    places = list(range(len(sources)))
    if tf.executing_eagerly():
        return places
    graph = tf.compat.v1.get_default_graph()
    position = {operation.name: number for number, operation in enumerate(graph.get_operations())}
    inside = {id(outer): inner for outer, inner in graph.captures}

    def first(place: int) -> int:
        handle = inside.get(id(getattr(tensorflow_variable(sources[place]), "handle", None)))
        readers = [] if handle is None else [each for each in handle.consumers() if UPDATE_SCOPE not in each.name]
        return min((position[each.name] for each in readers), default=len(position))

    return sorted(places, key=first)


def _identity(source: Any) -> Hashable:
    """Two variables are never one, even with the same name; tensors are told apart by their places alone."""
    unique = getattr(tensorflow_variable(source), "_unique_id", None)  # what Keras knows variables by
    return (str(source.dtype), str(source.shape)) if unique is None else unique
