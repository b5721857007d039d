"""What users write, and the one line they read when it is wrong."""

from typing import Any

import pytest

from legato.compression import Scheme, from_byteps, parse, select
from legato.compression.codecs import Dithering, OneBit, TopK
from legato.errors import InputError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fp16", "fp16"),
        ("bf16+ef", "bf16+ef"),
        ("int8+ef", "int8+ef"),
        ("onebit", "onebit"),
        ("onebit:scaling=false+ef", "onebit:scaling=false+ef"),
        ("topk:0.01+ef", "topk:0.01+ef"),
        ("topk:k=100", "topk:100"),
        ("randomk:0.1,seed=3+ef+nesterov", "randomk:0.1,seed=3+ef+nesterov:0.9"),
        ("dithering:4", "dithering:4"),
        ("dithering:k=4,partition=natural,normalize=l2,seed=1", "dithering:4,partition=natural,normalize=l2,seed=1"),
    ],
)
def test_schemes_are_written_in_one_way(text: str, words: str) -> None:
    scheme = parse(text)
    assert scheme is not None
    assert scheme.words() == words
    assert parse(words) == scheme


def test_none_is_no_scheme() -> None:
    assert parse("none") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("zip", "codec 'zip' is unknown; accepted: none, fp16"),
        ("topk", "codec topk: k is missing; write topk:k=..."),
        ("topk:0", "codec topk: k is 0; accepted is a fraction above 0 and below 1, or a whole number"),
        ("topk:-1", "k is -1"),
        ("topk:1.5", "k is 1.5"),
        ("topk:nan", "k is nan"),
        ("topk:inf", "k is inf"),
        ("topk:many", "k is 'many'; accepted is a number"),
        ("randomk:0.1,seed=-1", "seed is -1"),
        ("dithering:0", "k is 0; accepted is a whole number from 1 to 127"),
        ("dithering:128", "k is 128"),
        ("dithering:33,partition=natural", "k is 33; accepted is a whole number from 1 to 32"),
        ("dithering:4,partition=cubic", "partition is 'cubic'; accepted: linear, natural"),
        ("dithering:4,normalize=l1", "normalize is 'l1'; accepted: max, l2"),
        ("onebit:scaling=maybe", "scaling is 'maybe'; accepted is true or false"),
        ("onebit:true", "'true' has no name; write it as name=value"),
        ("fp16:k=3", "parameter 'k' is unknown; it has none"),
        ("fp16+fe", "'fe' is unknown; accepted: ef, nesterov"),
        ("fp16+nesterov:1", "nesterov is 1; accepted is a number from 0 up to but not 1"),
        ("fp16+nesterov:x", "'nesterov:x' is unknown"),
        ("fp16+ef+ef", "says the same twice"),
    ],
)
def test_bad_schemes(text: str, why: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_patterns_are_tried_in_order() -> None:
    selection = select({"embed.*": "none", "*.bias": "fp16", "*": "topk:0.01+ef"}, 0)
    assert selection.scheme("embed.weight", "float32", 1000) is None
    assert selection.scheme("fc.bias", "float32", 1000) == parse("fp16")
    assert selection.scheme("fc.weight", "float32", 1000) == parse("topk:0.01+ef")
    assert select({"fc.*": "fp16"}, 0).scheme("conv.weight", "float32", 1000) is None


def test_small_tensors_travel_as_they_are() -> None:
    assert select("topk:0.01", None).scheme("w", "float32", 16383) is None
    assert select("topk:0.01", None).scheme("w", "float32", 16384) is not None
    assert select("topk:0.5", 0).scheme("w", "float32", 2) is not None
    assert select("fp16+ef", None).scheme("w", "float32", 1) is not None
    assert select("fp16+ef", 0).scheme("w", "float32", 0) is None


@pytest.mark.parametrize(
    ("value", "dtype", "why"),
    [
        ("fp16", "int64", "tensor 'w' is int64, but compression fp16 is for float32; choose \"none\" for it"),
        ("topk:0.1+ef", "bfloat16", "tensor 'w' is bfloat16, but compression topk:0.1+ef is for float32"),
        ("topk:101", "float32", "tensor 'w': codec topk: k is 101, but the tensor has 100 items"),
    ],
)
def test_schemes_that_do_not_fit_their_tensor(value: str, dtype: str, why: str) -> None:
    with pytest.raises(InputError) as error:
        select(value, 0).scheme("w", dtype, 100)
    assert why in str(error.value)


def test_bad_selections() -> None:
    with pytest.raises(InputError, match="min_compress_bytes is -1"):
        select("fp16", -1)
    with pytest.raises(InputError, match="compression is 7"):
        select(7, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parameters", "scheme"),
    [
        ({"compressor": "onebit", "ef": "vanilla", "scaling": True}, Scheme(codec=OneBit(), error_feedback=True)),
        ({"compressor": "onebit"}, Scheme(codec=OneBit(scaling=False))),
        ({"compressor": "topk", "k": 0.01, "ef": "", "fp16": False}, Scheme(codec=TopK(k=0.01))),
        (
            {"compressor": "dithering", "k": 4, "partition": "natural", "normalize": "l2", "seed": 0},
            Scheme(codec=Dithering(k=4, partition="natural", normalize="l2")),
        ),
        (
            {"compressor": "topk", "k": 5, "momentum": "nesterov", "momentum_mu": 0.5},
            Scheme(codec=TopK(k=5), momentum=0.5),
        ),
        ({"fp16": True}, parse("fp16")),
    ],
)
def test_byteps_parameters(parameters: dict[str, Any], scheme: Scheme) -> None:
    assert from_byteps(parameters) == scheme
    assert select(parameters, 0).scheme("w", "float32", 100) == scheme


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"compressor": "zip"}, "compressor is 'zip'"),
        ({"compressor": "topk", "k": 0.1, "ef": "sparse"}, "ef is 'sparse'; accepted: vanilla"),
        ({"compressor": "fp16", "momentum": "heavy"}, "momentum is 'heavy'; accepted: nesterov"),
        ({"compressor": "fp16", "kk": 1}, "parameter 'kk' is unknown"),
        ({"compressor": "topk"}, "k is missing"),
    ],
)
def test_bad_byteps_parameters(parameters: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        from_byteps(parameters)
