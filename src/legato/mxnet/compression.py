"""BytePS's compression parameters, as a trainer and `byteps_declare_tensor` are given them."""

from collections.abc import Mapping
from typing import Any

from legato.compression.byteps import from_byteps
from legato.errors import InputError

_DECLARED = {
    "byteps_compressor_type": "compressor",
    "byteps_ef_type": "ef",
    "byteps_momentum_type": "momentum",
    "byteps_momentum_mu": "momentum_mu",
    "byteps_compressor_k": "k",
    "byteps_compressor_onebit_scaling": "scaling",
    "byteps_seed": "seed",
    "byteps_dithering_partition": "partition",
    "byteps_dithering_normalize": "normalize",
}
"""What `byteps_declare_tensor` calls the parameters."""


def declared(properties: Mapping[str, Any]) -> dict[str, Any] | None:
    """The parameters of a tensor, from what it was declared with."""
    for name in properties:
        if name not in _DECLARED:
            raise InputError(f"property {name!r} is unknown; accepted: {', '.join(_DECLARED)}")
    return checked({_DECLARED[name]: value for name, value in properties.items()} or None)


def checked(parameters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Parameters that can be followed; None where there are none."""
    if not parameters:
        return None
    if "compressor" not in parameters and "fp16" not in parameters:
        raise InputError('compression_params have no "compressor"; accepted: onebit, topk, randomk, dithering')
    from_byteps(parameters)  # raises where it cannot be
    return dict(parameters)


def split(
    parameters: Mapping[str, Any] | None, optimizer_params: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Compression, and what is left for the optimizer: a momentum before the codec is not the optimizer's too."""
    optimizer_params = dict(optimizer_params or {})
    compression = checked(parameters)
    if compression is None or not compression.get("momentum"):
        return compression, optimizer_params
    if "momentum" not in optimizer_params:
        raise InputError('compression_params have a momentum; give its size as "momentum" in optimizer_params')
    if optimizer_params.get("wd"):
        raise InputError("compression_params with a momentum leave weight decay out of it; accepted is wd 0")
    compression["momentum_mu"] = optimizer_params.pop("momentum")
    return compression, optimizer_params
