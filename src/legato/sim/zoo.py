"""A zoo of workloads, from the architectures' own shapes.

Every model is a list of modules in forward order with their parameters and the multiply-adds of one sample. Bytes are
exact (float32); times are floating-point operations over the speed an accelerator reaches, backward costing twice
forward. They place a model between compute-bound and communication-bound; a measured profile replaces them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from legato.core import Layer, Workload
from legato.errors import InputError

DEFAULT_TFLOPS = 9.0
"""About what a V100 reaches in float32: 360 images per second of ResNet50."""


class Module(NamedTuple):
    name: str
    parameters: int
    multiply_adds: float


class Model(NamedTuple):
    modules: Callable[[], Iterator[Module]]
    batch: int
    """Samples per worker and step, as in the papers this project reproduces."""


def workload(model: str, *, batch: int | None = None, tflops: float = DEFAULT_TFLOPS) -> Workload:
    """A model of the zoo as a workload, for a batch size and an accelerator's speed."""
    if model not in ZOO:
        raise InputError(f"model {model!r} is unknown; accepted: {', '.join(ZOO)}")
    samples = ZOO[model].batch if batch is None else batch
    if samples < 1 or not tflops > 0:
        raise InputError(f"model {model!r}: batch={samples} and tflops={tflops} must be more than 0")
    seconds = 2 * samples / (tflops * 1e12)
    return Workload(
        model,
        tuple(
            Layer(
                module.name, 4 * module.parameters, module.multiply_adds * seconds, 2 * module.multiply_adds * seconds
            )
            for module in ZOO[model].modules()
        ),
    )


def _conv(name: str, inputs: int, outputs: int, kernel: int, side: int, *, bias: bool = False) -> Module:
    weights = inputs * outputs * kernel * kernel
    return Module(name, weights + outputs * bias, weights * side * side)


def _norm(name: str, channels: int, positions: int) -> Module:
    """Batch or layer normalisation: a scale and a shift, about two multiply-adds for each value."""
    return Module(name, 2 * channels, 2 * channels * positions)


def _linear(name: str, inputs: int, outputs: int, positions: int = 1) -> Module:
    return Module(name, inputs * outputs + outputs, inputs * outputs * positions)


def _alexnet() -> Iterator[Module]:
    yield _conv("conv1", 3, 64, 11, 55, bias=True)
    yield _conv("conv2", 64, 192, 5, 27, bias=True)
    yield _conv("conv3", 192, 384, 3, 13, bias=True)
    yield _conv("conv4", 384, 256, 3, 13, bias=True)
    yield _conv("conv5", 256, 256, 3, 13, bias=True)
    yield _linear("fc6", 256 * 6 * 6, 4096)
    yield _linear("fc7", 4096, 4096)
    yield _linear("fc8", 4096, 1000)


def _vgg16() -> Iterator[Module]:
    channels, side = 3, 224
    for block, (width, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for place in range(1, depth + 1):
            yield _conv(f"conv{block}_{place}", channels, width, 3, side, bias=True)
            channels = width
        side //= 2
    yield _linear("fc6", 512 * 7 * 7, 4096)
    yield _linear("fc7", 4096, 4096)
    yield _linear("fc8", 4096, 1000)


def _resnet50() -> Iterator[Module]:
    yield _conv("conv1", 3, 64, 7, 112)
    yield _norm("bn1", 64, 112 * 112)
    channels, side = 64, 56
    for stage, (width, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(depth):
            name = f"layer{stage}.{block}"
            before, side = side, side if block or stage == 1 else side // 2
            yield _conv(f"{name}.conv1", channels, width, 1, before)
            yield _norm(f"{name}.bn1", width, before * before)
            yield _conv(f"{name}.conv2", width, width, 3, side)
            yield _norm(f"{name}.bn2", width, side * side)
            yield _conv(f"{name}.conv3", width, 4 * width, 1, side)
            yield _norm(f"{name}.bn3", 4 * width, side * side)
            if block == 0:
                yield _conv(f"{name}.downsample.0", channels, 4 * width, 1, side)
                yield _norm(f"{name}.downsample.1", 4 * width, side * side)
            channels = 4 * width
    yield _linear("fc", 2048, 1000)


def _densenet121() -> Iterator[Module]:
    growth = 32
    yield _conv("conv0", 3, 64, 7, 112)
    yield _norm("norm0", 64, 112 * 112)
    channels, side = 64, 56
    for block, depth in enumerate((6, 12, 24, 16), start=1):
        for place in range(1, depth + 1):
            name = f"block{block}.{place}"
            yield _norm(f"{name}.norm1", channels, side * side)
            yield _conv(f"{name}.conv1", channels, 4 * growth, 1, side)
            yield _norm(f"{name}.norm2", 4 * growth, side * side)
            yield _conv(f"{name}.conv2", 4 * growth, growth, 3, side)
            channels += growth
        if block < 4:
            yield _norm(f"transition{block}.norm", channels, side * side)
            yield _conv(f"transition{block}.conv", channels, channels // 2, 1, side)
            channels, side = channels // 2, side // 2
    yield _norm("norm5", channels, side * side)
    yield _linear("classifier", channels, 1000)


def _attention(name: str, width: int, length: int) -> Iterator[Module]:
    for projection in ("query", "key", "value"):
        yield _linear(f"{name}.{projection}", width, width, length)
    # The scores and their use: two products of length × length × width, counted where they are followed by weights.
    output = _linear(f"{name}.output", width, width, length)
    yield output._replace(multiply_adds=output.multiply_adds + 2 * length * length * width)
    yield _norm(f"{name}.norm", width, length)


def _feed_forward(name: str, width: int, length: int) -> Iterator[Module]:
    yield _linear(f"{name}.up", width, 4 * width, length)
    yield _linear(f"{name}.down", 4 * width, width, length)
    yield _norm(f"{name}.norm", width, length)


def _tied_head(vocabulary: int, width: int, length: int) -> Module:
    """The output projection shares the embedding's weights: it computes, and its gradient travels with layer 0."""
    return Module("head", 0, vocabulary * width * length)


def _transformer_big() -> Iterator[Module]:
    width, length, vocabulary = 1024, 64, 37_000
    yield Module("embedding", vocabulary * width, width * length)
    for block in range(6):
        yield from _attention(f"encoder{block}.attention", width, length)
        yield from _feed_forward(f"encoder{block}.ffn", width, length)
    for block in range(6):
        yield from _attention(f"decoder{block}.attention", width, length)
        yield from _attention(f"decoder{block}.cross", width, length)
        yield from _feed_forward(f"decoder{block}.ffn", width, length)
    yield _tied_head(vocabulary, width, length)


def _bert(blocks: int, width: int) -> Iterator[Module]:
    length, vocabulary = 128, 30_522
    yield Module("embeddings.word", vocabulary * width, width * length)
    yield Module("embeddings.position", (512 + 2) * width, width * length)
    yield _norm("embeddings.norm", width, length)
    for block in range(blocks):
        yield from _attention(f"block{block}.attention", width, length)
        yield from _feed_forward(f"block{block}.ffn", width, length)
    yield _linear("transform", width, width, length)
    yield _norm("transform.norm", width, length)
    yield _tied_head(vocabulary, width, length)


def _gpt2() -> Iterator[Module]:
    width, length, vocabulary = 768, 1024, 50_257
    yield Module("wte", vocabulary * width, width * length)
    yield Module("wpe", length * width, width * length)
    for block in range(12):
        yield from _attention(f"h{block}.attention", width, length)
        yield from _feed_forward(f"h{block}.mlp", width, length)
    yield _norm("ln_f", width, length)
    yield _tied_head(vocabulary, width, length)


ZOO: dict[str, Model] = {
    "alexnet": Model(_alexnet, 32),
    "vgg16": Model(_vgg16, 32),
    "resnet50": Model(_resnet50, 32),
    "densenet121": Model(_densenet121, 32),
    "transformer-big": Model(_transformer_big, 32),
    "bert-base": Model(partial(_bert, 12, 768), 32),
    "bert-large": Model(partial(_bert, 24, 1024), 32),
    "gpt2": Model(_gpt2, 4),
}
